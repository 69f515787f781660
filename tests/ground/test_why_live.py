"""A training of four ranks on four real hosts, and what is said by itself when it stops: who, why, and how soon."""

import time
from collections.abc import Iterator

import pytest
from deadlines import wait_until
from launching import Launches
from stalls import Training, dead_mount, told, training

from aboard.sandbox.faults import Fault, inject_temporarily
from aboard.sandbox.faults.network.firewall import FirewallDrop
from aboard.sandbox.faults.network.links import LinkDown, LinkRateLimit, MtuBlackHole

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("torch_a")]

# What a user may wait; the machine of the tests has two cores for four ranks.
SOON = 20.0


@pytest.fixture(scope="module")
def going(four: Launches) -> Iterator[Training]:
    """One training for all: it goes on after each trouble."""
    with training(four, env={"SIZE": "100000"}) as started:
        wait_until(lambda: started.step() > 15, 120, lambda: f"it makes steps: {started.going.said[-2000:]}")
        yield started


def test_a_training_that_goes_on_is_never_called_hung(going: Training) -> None:
    """Whenever `aboard why` is asked, the answer is how far the run is."""
    for _ in range(4):
        said = going.launches.aboard("why").stdout
        assert ": step " in said, said
        assert "hang-" not in said, said


@pytest.mark.parametrize(
    ("kind", "rank", "code", "node"),
    [
        ("sleep", 1, "hang-absent", "n2"),
        ("lock", 2, "hang-lock", "n3"),
        ("data", 3, "hang-data", "n4"),
        ("outside", 1, "hang-outside", "n2"),
    ],
)
def test_a_rank_that_does_not_come(going: Training, kind: str, rank: int, code: str, node: str) -> None:
    """The rank that all others wait for is named, its node, and the line at which it is."""
    since = going.trouble(kind, rank)
    seconds, found = going.verdict(since, SOON)
    going.release()
    told(f"{kind}: {seconds:.1f} s")
    assert (found["code"], found["nodes"], found["ranks"]) == (code, [node], [rank]), found
    assert "why_job.py:" in found["seen"]
    assert "3 other ranks" in found["seen"]
    going.moves(60)


def test_a_rank_that_computes_for_ever(going: Training) -> None:
    """Work is given more time than sleep, and is then told with the line and the cores."""
    since = going.trouble("loop", 2)
    seconds, found = going.verdict(since, 40)
    going.release()
    told(f"loop: {seconds:.1f} s")
    assert (found["code"], found["nodes"], found["ranks"]) == ("hang-loop", ["n3"], [2]), found
    assert "in loop" in found["seen"]
    going.moves(60)


@pytest.mark.parametrize(
    ("fault", "node", "code"),
    [
        (FirewallDrop(network="fabric"), "n3", "hang-link-cut"),
        pytest.param(MtuBlackHole(network="fabric"), "n4", "hang-big-packets", marks=pytest.mark.nightly),
        (LinkDown(network="fabric"), "n2", "hang-link-down"),
        pytest.param(LinkRateLimit(mbit=20, network="fabric"), "n3", "slow-link", marks=pytest.mark.nightly),
    ],
    ids=lambda given: given.name if isinstance(given, Fault) else None,
)
def test_a_network_that_breaks(going: Training, fault: Fault, node: str, code: str) -> None:
    """The node whose packets are lost is named, and in which way, while torch says nothing for half an hour."""
    with inject_temporarily(going.launches.box, going.launches.box.host(node), fault):
        seconds, found = going.verdict(time.time(), 2 * SOON)
        told(f"{fault.name}: {seconds:.1f} s")
        assert found["code"] == code, found
        assert node in found["nodes"]
        assert len(found["nodes"]) <= 2
    going.moves(90)


@pytest.mark.parametrize(
    "kind", ["save", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("declared", "evaluate"))]
)
def test_pauses_that_are_part_of_the_work(going: Training, kind: str) -> None:
    """A checkpoint of one rank, said by itself or seen in its stack, and an evaluation of all: none is called stuck."""
    since = going.trouble(kind, "all" if kind == "evaluate" else 0)
    wait_until(lambda: time.time() > since + 20, 30, "it has waited")
    going.release()
    assert [finding for _at, finding in going.verdicts(since) if finding] == []
    going.moves(60)


def test_why_is_answered_at_once(going: Training) -> None:
    """`aboard why` without a word means the newest run that lives; what was ruled out is told to those who ask."""
    since = going.trouble("sleep", 1)
    # Not any verdict: a network that was just mended may still have its own.
    wait_until(
        lambda: any(found.get("code") == "hang-absent" for _at, found in going.verdicts(since)),
        SOON,
        lambda: f"the verdict: {going.going.said[-3000:]}",
    )
    assert "hang-absent" in going.launches.aboard("why").stdout
    said = going.launches.aboard("why", going.run, "-v").stdout
    going.release()
    assert "rank 1 on n2" in said
    assert "not   a stopped rank" in said
    going.moves(60)


def test_a_mount_that_is_dead(going: Training) -> None:
    """A rank that hangs in the kernel is named with the file and the mount. It comes last: the run ends of it."""
    with dead_mount(going.launches.box.host("n2")):
        since = going.trouble("file", 1, 0)
        seconds, found = going.verdict(since, SOON)
    told(f"dead mount: {seconds:.1f} s")
    assert (found["code"], found["nodes"], found["ranks"]) == ("hang-mount", ["n2"], [1])
    assert "/mnt/dead/shard-7" in found["seen"]
