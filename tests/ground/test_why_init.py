"""Ranks that don't meet: on four real hosts, which node, which way, within seconds where torch waits for minutes."""

import time
from contextlib import nullcontext

import pytest
from deadlines import wait_until
from launching import Launches
from stalls import told, training

from aboard.sandbox.faults import Fault, inject_temporarily
from aboard.sandbox.faults.network.firewall import FirewallDrop

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("torch_a")]

# Ports of the store, and those that the kernel gives to ranks which listen for each other.
STORE, ANY = "29500-29999", "32768-60999"
# From when the ranks that could have come to where they wait.
SOON = 25.0


@pytest.mark.parametrize(
    ("node", "fault", "env", "code", "ranks"),
    [
        pytest.param(
            "n1", FirewallDrop(ports=STORE, network="fabric"), {}, "init-store-dropped", [1, 2, 3], id="store"
        ),
        pytest.param("n2", FirewallDrop(ports=ANY, network="fabric"), {}, "network-ephemeral-dropped", [1], id="peers"),
        pytest.param("n1", None, {"TROUBLE": "world"}, "init-world", [0, 1, 2, 3], id="world"),
        # Nightly, as the bench of faults is, which has them all and more.
        *(
            pytest.param(*case, id=name, marks=pytest.mark.nightly)
            for name, case in {
                "store-from-one": (
                    "n3",
                    FirewallDrop(ports=STORE, network="fabric", way="out"),
                    {},
                    "init-store-dropped",
                    [2],
                ),
                "port": ("n3", None, {"TROUBLE": "port", "TROUBLE_RANK": "2"}, "init-elsewhere", [2]),
                "port-of-rank-0": ("n1", None, {"TROUBLE": "port", "TROUBLE_RANK": "0"}, "init-elsewhere", [0]),
                "late-rank-0": (
                    "n1",
                    None,
                    {"TROUBLE": "sleep", "TROUBLE_RANK": "0", "TROUBLE_STEP": "-1"},
                    "init-rank-late",
                    [0],
                ),
                "name": (
                    "n2",
                    None,
                    {"TROUBLE": "address", "TROUBLE_RANK": "1", "TROUBLE_ADDRESS": "nowhere.example"},
                    "init-name",
                    [1],
                ),
                "late": (
                    "n4",
                    None,
                    {"TROUBLE": "sleep", "TROUBLE_RANK": "3", "TROUBLE_STEP": "-1"},
                    "init-rank-late",
                    [3],
                ),
            }.items()
        ),
    ],
)
def test_ranks_that_do_not_meet(
    four: Launches, node: str, fault: Fault | None, env: dict[str, str], code: str, ranks: list[int]
) -> None:
    """What torch tells with one sentence after minutes has its own name each, with node and rank."""
    host = four.box.host(node)
    with training(four, env=env) as going, inject_temporarily(four.box, host, fault) if fault else nullcontext():
        wait_until(lambda: '"torch"' in four.read(going.run, "events.jsonl"), 90, "torch is imported")
        since = time.time()
        seconds, found = going.verdict(since, SOON + 30)
        last = max(event["at"] for event in four.events(going.run) if event["kind"] == "phase")
        told(f"{code}: {seconds - (last - since):.1f} s after the last phase")
        assert (found["code"], found["ranks"]) == (code, ranks)
        assert node in found["nodes"]
        assert "Interrupted system call" not in going.going.said


@pytest.mark.nightly
def test_a_slow_import_is_waited_for(four: Launches) -> None:
    """Fifteen seconds in a module's import while all others wait in the store: nothing is called stuck."""
    with training(four, env={"TROUBLE": "slow-import", "TROUBLE_RANK": "3"}) as going:
        wait_until(lambda: going.step() > 3, 150, lambda: f"it makes steps: {going.going.said[-2000:]}")
        assert going.verdicts(0.0) == []


def test_a_stuck_run_is_ended_when_that_is_wanted(four: Launches) -> None:
    """With --on-stall stop the verdict is what the run ended of, and its exit code says so."""
    env = {"TROUBLE": "sleep", "TROUBLE_RANK": "2", "TROUBLE_STEP": "10"}
    with training(four, "--on-stall", "stop", env=env) as going:
        assert going.going.wait(150) == 124
        assert "block hang-absent n3" in going.going.said
    assert "hang-absent" in four.aboard("why", going.run).stdout


@pytest.mark.nightly
def test_a_stuck_run_is_restarted_when_that_is_wanted(four: Launches) -> None:
    """A minute after its verdict, and once only: the second attempt hangs in the same step."""
    env = {"TROUBLE": "sleep", "TROUBLE_RANK": "2", "TROUBLE_STEP": "10"}
    with training(four, "--on-stall", "restart", "--restarts", "3", env=env) as going:
        assert going.going.wait(400) == 124
        said = going.going.said
    assert "then restarted in 60 s, unless it makes progress" in said
    assert "hang-absent  n3" in said.partition("attempt 2")[0]
    assert "block hang-absent n3" in said.partition("attempt 2")[2]
    assert said.count("restarting all ranks, because") == 1
    assert "not restarted: it failed again with the same error at the same step" in said
    ends = [event for event in four.events(going.run) if event["kind"] == "deciding"]
    verdicts = [event for event in four.events(going.run) if event["kind"] == "verdict" and event["data"]["findings"]]
    assert ends[0]["at"] - verdicts[0]["at"] >= 60


@pytest.mark.nightly
def test_a_hang_that_is_a_bug_of_the_program_is_not_restarted(four: Launches) -> None:
    """Ranks in different collectives would only hang again; the run ends with its verdict, and hangs no longer."""
    env = {"TROUBLE": "broadcast", "TROUBLE_RANK": "2", "TROUBLE_STEP": "10"}
    with training(four, "--on-stall", "restart", "--restarts", "3", env=env) as going:
        assert going.going.wait(300) == 124
        assert "then stopped in 60 s, unless it makes progress" in going.going.said
        assert "not restarted: the program failed, and would fail again" in going.going.said
