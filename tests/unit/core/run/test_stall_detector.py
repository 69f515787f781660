"""The rhythm of a run: when it is broken for so long that one should ask, and how often again."""

from itertools import pairwise

from aboard.core.run.events import Event, Measurement
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_state import Run
from aboard.core.run.stall_detector import LEAST_SECONDS, LONGEST_PAUSE_SECONDS, StallDetector


def started(at: float = 100.0) -> tuple[Run, StallDetector]:
    run = Run(id="brave-otter")
    run.apply(Event(node="", seq=0, at=at, kind="generation", data={"number": 1}))
    run.apply(Event(node="n1", seq=1, at=at, kind="started", child="0"))
    rhythm = StallDetector()
    rhythm.update(run, at)
    return run, rhythm


def stepping(run: Run, rhythm: StallDetector, steps: int, seconds: float, at: float = 100.0) -> float:
    for step in range(1, steps + 1):
        at += seconds
        run.take(Measurement(node="n1", at=at, child="0", values={"step": step, "step_seconds": seconds}))
        rhythm.update(run, at)
    return at


def test_a_new_phase_starts_the_clock_again() -> None:
    """Nobody is asked while ranks come to new phases."""
    run, rhythm = started()
    assert not rhythm.due(run, 100 + LEAST_SECONDS - 0.1)
    run.apply(Event(node="n1", seq=2, at=104.0, kind="phase", child="0", data={"phase": "torch"}))
    assert rhythm.update(run, 104.1)
    assert not rhythm.due(run, 104 + LEAST_SECONDS - 0.1)
    assert rhythm.due(run, 104 + LEAST_SECONDS + 0.1)


def test_the_pauses_between_questions_grow() -> None:
    """A run that hangs for hours is not asked each second."""
    run, rhythm = started()
    asked = [now for now in range(100, 400) if rhythm.due(run, float(now))]
    gaps = [after - before for before, after in pairwise(asked)]
    assert gaps == sorted(gaps)
    assert gaps[0] <= 3
    assert gaps[-1] >= LONGEST_PAUSE_SECONDS


def test_long_steps_have_long_patience() -> None:
    """A step of ten seconds is not stuck after twenty."""
    run, rhythm = started()
    at = stepping(run, rhythm, 10, 10.0)
    assert run.generation.phases[Phase.STEPS] == 1
    assert not rhythm.due(run, at + 20)
    assert rhythm.due(run, at + 45)


def test_slower_steps_are_noticed_though_they_move() -> None:
    """Three times the usual for a while is news; the usual stays what it was."""
    run, rhythm = started()
    at = stepping(run, rhythm, 30, 0.5)
    for step in range(31, 50):
        at += 2.0
        run.take(Measurement(node="n1", at=at, child="0", values={"step": step, "step_seconds": 2.0}))
        rhythm.update(run, at)
    assert rhythm.slow
    assert rhythm.due(run, at)
    assert rhythm.usual is not None
    assert rhythm.usual < 0.6
    stepping(run, rhythm, 60, 0.5, at)
    assert not rhythm.slow


def test_a_new_generation_is_a_new_rhythm() -> None:
    """What was learned of the attempt before is forgotten."""
    run, rhythm = started()
    at = stepping(run, rhythm, 10, 0.5)
    run.apply(Event(node="", seq=0, at=at + 1, kind="generation", data={"number": 2}))
    assert rhythm.update(run, at + 1)
    assert rhythm.usual is None


def test_a_node_that_is_only_silent_stops_nobody() -> None:
    """Its last step stays behind while the others' go on: that is no stall."""
    run, rhythm = started()
    run.take(Measurement(node="n2", at=100.0, child="1", values={"step": 3, "step_seconds": 0.5}))
    at = stepping(run, rhythm, 60, 0.5)
    assert not rhythm.due(run, at + 1)
