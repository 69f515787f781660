"""A launcher inside of ranks: each node would train a world of its own, so the run is stopped at once."""

from collections.abc import Iterator

import pytest
from deadlines import slowness
from launching import Launches, build_sandbox

pytestmark = pytest.mark.ground

# Stands for torch's launcher: importing torch would take seconds of a core in each rank.
RUN = "import time\nfor _ in range(600):\n    time.sleep(0.1)\n"


@pytest.fixture(scope="module")
def two() -> Iterator[Launches]:
    """Two nodes with one rank each."""
    with build_sandbox("nested", nodes=2, slots=1) as made:
        launches = Launches(made)
        made.head.run(["mkdir", "-p", "/shared/job/torch/distributed"]).check_returncode()
        launches.put("torch/__init__.py", "")
        launches.put("torch/distributed/__init__.py", "")
        launches.put("torch/distributed/run.py", RUN)
        launches.put("go", "exec python3 -u -m torch.distributed.run --nproc-per-node 2 job.py\n")
        yield launches


@pytest.mark.parametrize("options", [(), ("--no-beacon",)])
def test_ranks_that_start_a_launcher(two: Launches, options: tuple[str, ...]) -> None:
    """From a script that is not captured: the verdict names the inner command and what to type."""
    ran = two.launch(*options, "--check", "none", "--no-capture", "--", "bash", "go")
    assert (ran.code, ran.verdict["code"]) == (1, "run-nested-launcher"), ran.said
    assert "aboard launch -- python -m torch.distributed.run --nproc-per-node 2 job.py" in ran.verdict["fix"]
    assert "run-nested-launcher" in two.aboard("why", ran.run).stdout
    events = two.events(ran.run)
    started = min(event["at"] for event in events if event["kind"] == "started")
    assert min(event["at"] for event in events if event["kind"] == "deciding") - started < 5 * slowness()


def test_one_rank_may_start_one(two: Launches) -> None:
    """A world of one takes nothing from others: a note."""
    two.put("torch/distributed/run.py", "import time\ntime.sleep(2.5)\n")
    ran = two.launch("n1", "--check", "none", "--no-capture", "--", "bash", "go")
    assert (ran.code, ran.verdict["code"]) == (0, "run-nested-launcher"), ran.said
    assert "run-nested-launcher" in ran.said
