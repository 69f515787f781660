"""A trial: which groups are tried, when one has shown that it can, and whom a failure names."""

from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from made_events import made_event
from made_findings import made_finding
from typed_commands import aboard

from aboard.core.run.recovery.node_trial import (
    ALIVE_SECONDS,
    STUCK_SECONDS,
    TrialResult,
    build_stages,
    build_trial_finding,
    has_succeeded,
)
from aboard.core.run.run_state import Run
from aboard.diagnoses import Severity

FOUND = made_finding(
    code="run-raised", severity=Severity.BLOCK, nodes=("n2",), seen="it raised", why="", fix="type this"
)


@given(st.integers(1, 20))
def test_every_node_is_tried_alone_in_a_pair_and_with_all(count: int) -> None:
    """No node is in two groups of one stage, since they run side by side."""
    names = [f"n{number}" for number in range(count)]
    held = build_stages(names)
    assert held[0] == [(name,) for name in names]
    assert held[-1] == [tuple(names)]
    for stage in held:
        members = list(chain.from_iterable(stage))
        assert len(members) == len(set(members))
    if count > 1:
        pairs = {name for stage in held[1:] for group in stage if len(group) == 2 for name in group}
        assert pairs == set(names)


@pytest.mark.ci
def test_the_list_of_runs_says_how_a_trial_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished when every node can; failed, with the verdict, when one can not; never blocked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "well.py").write_text("")
    (tmp_path / "ill.py").write_text("raise RuntimeError('no such device')")
    trial = ("launch", "--trial", "--check", "none", "--ranks", "1", "localhost", "--")
    assert [aboard(*trial, script).code for script in ("well.py", "ill.py")] == [0, 1]
    _head, ill, well = (line.split("\t") for line in aboard("status").stdout.splitlines())
    assert (well[1], well[5]) == ("finished", "-")
    assert ill[1] == "failed"
    assert ill[5].startswith("localhost can't run the command by itself: ")


def _run(*events: tuple[str, str, float, str]) -> Run:
    told = [
        made_event(kind, node="n1", seq=1, at=at, child=child, phase=phase, code=0) for kind, child, at, phase in events
    ]
    return Run.replay("r", told)


def test_a_group_has_shown_that_it_can() -> None:
    """All ranks past their first collective; what isn't torch's, alive for some seconds; else open, then stuck."""
    both = [("started", "0", 1.0, ""), ("started", "1", 1.0, "")]
    far = [("phase", "0", 2.0, "collective"), ("phase", "1", 2.0, "collective")]
    assert has_succeeded(_run(*both, *far), 2, 2.5) is True
    assert has_succeeded(_run(*both, far[0]), 2, 2.5) is None
    assert has_succeeded(_run(*both, far[0]), 2, 2.0 + STUCK_SECONDS + 1) is False
    assert has_succeeded(_run(*both), 2, 1.0 + ALIVE_SECONDS + 1) is True
    assert has_succeeded(_run(*both, ("phase", "0", 1.0, "torch")), 2, 1.0 + ALIVE_SECONDS + 1) is None


def test_the_smallest_group_that_fails_is_named() -> None:
    """A node by itself before a pair, a pair before all; a group that passed names nobody."""
    alone = TrialResult(group=("n2",), passed=False, seconds=1, outcome="it raised", findings=(FOUND,))
    fine = TrialResult(group=("n1",), passed=True, seconds=1, outcome="it ran")
    pair = TrialResult(group=("n1", "n2"), passed=False, seconds=1, outcome="they hang")
    assert build_trial_finding([fine]) is None
    found = build_trial_finding([fine, alone, pair])
    assert found is not None
    assert (found.nodes, found.fix) == (("n2",), "type this")
    assert found.seen == "n2 can't run the command by itself: it raised"
    found = build_trial_finding([fine, pair])
    assert found is not None
    assert found.seen == "n1+n2 can't run the command as a pair, although each can alone: they hang"
