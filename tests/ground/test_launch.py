"""`aboard launch` on four real hosts: it runs, and every way of dying has its name."""

import re
from collections.abc import Iterator

import pytest
from deadlines import slowness
from launching import Launches, build_sandbox

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("torch_a")]

# What the issue allows from the first death until all others are ended.
END_SECONDS = 10.0


@pytest.fixture(scope="module")
def four() -> Iterator[Launches]:
    """Four nodes with one rank each."""
    with build_sandbox("launch", nodes=4, slots=1) as made:
        yield Launches(made)


def test_a_job_runs_on_all_nodes(four: Launches) -> None:
    """Unchanged, with torchrun's environment; the exit code is 0 and nothing is left."""
    ran = four.launch("--", "job.py")
    assert ran.code == 0, ran.said
    assert "[ranks 0-3 ×4] world 4" in four.aboard("logs", ran.run).stdout
    assert "phase collective 4/4" in ran.said
    assert ran.findings == []
    assert four.orphans(ran.run) == {}


@pytest.mark.parametrize(
    ("how", "at", "code", "verdict", "said"),
    [
        ("raise", "start", 1, "run-raised", "ValueError: a bad batch"),
        pytest.param(
            "raise",
            "before",
            1,
            "run-raised",
            "torch imported, raised ValueError: a bad batch",
            marks=pytest.mark.nightly,
        ),
        ("raise", "after", 1, "run-raised", "training, raised ValueError: a bad batch"),
        ("exit", "after", 3, "run-exited", "exited with code 3"),
        pytest.param("kill", "before", 137, "run-killed", "SIGKILL", marks=pytest.mark.nightly),
        ("kill", "during", 137, "run-killed", "SIGKILL"),
        pytest.param("kill", "after", 137, "run-killed", "SIGKILL", marks=pytest.mark.nightly),
        pytest.param("stop", "before", 1, "run-rank-stopped", "SIGSTOP", marks=pytest.mark.nightly),
        pytest.param("stop", "during", 1, "run-rank-stopped", "SIGSTOP", marks=pytest.mark.nightly),
        ("stop", "after", 1, "run-rank-stopped", "SIGSTOP"),
    ],
)
def test_every_way_of_dying(four: Launches, how: str, at: str, code: int, verdict: str, said: str) -> None:
    """The rank that died first is named, its node and how, now and later; the other ends soon, and nothing is left."""
    env = [f"FATE={how}", f"FATE_AT={at}", "FATE_RANK=1", "STEPS=1000"]
    ran = four.launch("--include", "n[2-3]", "--", "job.py", env=env)
    assert ran.code == code, ran.said
    found = ran.verdict
    assert (found["code"], found["nodes"], found["ranks"]) == (verdict, ["n3"], [1]), ran.said
    assert said in found["seen"]
    assert ran.last_seconds <= END_SECONDS * slowness()
    assert four.orphans(ran.run) == {}
    # One finding, above the story of its code: what a peer printed when it lost its connection is no second one.
    assert re.findall(r"^✗ (\S+)  (n\S+)", four.aboard("why", ran.run).stdout, re.MULTILINE) == [(verdict, "n3")]
