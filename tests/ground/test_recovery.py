"""Runs on real hosts that fail and are restarted by the cause of the failure."""

import re
from collections.abc import Iterator

import pytest
from deadlines import wait_until
from launching import Launches, build_sandbox

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("recovery")]

# A job without torch: rank 0 counts generations in a file, and `how` is what a rank does in the first `times` of them.
JOB = """
import os, pathlib, signal, sys, time
how, times, rank = sys.argv[1], int(sys.argv[2]), int(os.environ["RANK"])
count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("rank", rank, "of", os.environ["WORLD_SIZE"], "on", os.uname().nodename, "restart", count, flush=True)
if rank == 1 and count < times:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "raise":
        raise ValueError("a bug of the program")
    elif how == "exit":
        sys.exit(7)
    elif how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
# Until Aboard ends this rank together with the one that failed.
deadline = time.monotonic() + 600
while how != "none" and count < times and time.monotonic() < deadline:
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Launches]:
    """Four nodes with one rank each."""
    with build_sandbox("recovery", nodes=4, slots=1) as made:
        launches = Launches(made)
        launches.put("fails.py", JOB)
        yield launches


def test_a_killed_rank_restarts_the_run_on_the_same_nodes(hosts: Launches) -> None:
    """The verdict is printed before the restart; the run exits with 0, and nothing of any generation is left."""
    ran = hosts.launch("--include", "n[1-2]", "--restarts", "3", "--", "fails.py", "kill", "2")
    assert ran.code == 0, ran.said
    verdicts = [match.start() for match in re.finditer("run-killed", ran.said)]
    restarts = [match.start() for match in re.finditer(r"attempt [23]: restarting", ran.said)]
    assert len(verdicts) >= 2
    assert len(restarts) == 2
    assert verdicts[0] < restarts[0] < restarts[1]
    logs = hosts.aboard("logs", ran.run).stdout
    # Of alike lines, the first one is shown, whichever rank printed it.
    assert re.search(r"\[attempt 3, ranks 0-1 ×2 ≈\] rank (0 of 2 on n1|1 of 2 on n2) restart 2", logs), logs
    end = "run-killed on n2: rank 1 on n2.* was killed by SIGKILL; restart: the failure may be transient; "
    for said in (ran.said, hosts.aboard("status", ran.run).stdout, hosts.aboard("why", ran.run).stdout):
        assert all(re.search(f"attempt {number}: {end}", said) for number in (1, 2)), said
    assert hosts.orphans(ran.run) == {}
    assert hosts.orphans(f"{ran.run}.2") == {}
    assert hosts.orphans(f"{ran.run}.3") == {}


def test_a_bug_of_the_program_restarts_nothing(hosts: Launches) -> None:
    """Its exception would come again."""
    ran = hosts.launch("--include", "n[1-2]", "--restarts", "3", "--", "fails.py", "raise", "9")
    assert ran.code == 1, ran.said
    assert "attempt 2" not in ran.said
    assert "not restarted: the program failed, and would fail again" in ran.said


def test_an_unknown_failure_is_tried_once_more(hosts: Launches) -> None:
    """A second failure with the same error at the same step ends the run."""
    ran = hosts.launch("--include", "n[1-2]", "--restarts", "3", "--", "fails.py", "segv", "9")
    assert ran.code == 128 + 11, ran.said
    assert ran.said.count("restarting all ranks") == 1
    assert "not restarted: it failed again with the same error at the same step" in ran.said


def test_a_run_that_the_user_stops_is_not_restarted(hosts: Launches) -> None:
    """Its ranks die of it, and that is no failure; Ctrl-C takes the same way."""
    words = ("--include", "n[1-2]", "--restarts", "3", "--", "fails.py", "hold", "1")
    with hosts.going("launch", *words) as going:
        wait_until(lambda: "phase python 2/2" in going.said, 60, lambda: going.said)
        assert hosts.aboard("stop", hosts.newest()).returncode == 0
        assert going.wait(60) == 130, going.said
        assert "attempt 2" not in going.said


def test_a_spare_takes_the_place_of_a_node_that_fails_again_and_again(hosts: Launches) -> None:
    """The third transient failure is the node's. The first spare fails its check: the next one gets its ranks."""
    words = ("--include", "n[1-4]", "--restarts", "5", "--spares", "2", "--", "fails.py", "kill", "3")
    with hosts.going("launch", *words) as going:
        wait_until(lambda: "attempt 2" in going.said, 60, lambda: going.said)
        hosts.box.host("n3").kill_power()
        assert going.wait(180) == 0, going.said
        said = going.said
    run = hosts.newest()
    assert "n2 failed 3 times without a new checkpoint: n3 takes over" in said
    assert "warning: spare n3 is left out: " in said
    assert said.index("n2 failed 3 times without a new checkpoint: n4 takes over") > said.index("n3 is left out")
    assert "rank 1 of 2 on n4 restart 3" in hosts.aboard("logs", run, "--rank", "1").stdout
