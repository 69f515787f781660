"""The rhythm of a run: when it is broken for so long that one should ask, and how often again."""

from itertools import pairwise

import pytest
from made_events import made_event

from aboard.core.run.events import Measurement
from aboard.core.run.lateness_meter import GroupArrivals, LatenessMeter
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_state import Run
from aboard.core.run.stall_detector import LEAST_SECONDS, LONGEST_PAUSE_SECONDS, StallDetector


def started(at: float = 100.0) -> tuple[Run, StallDetector]:
    run = Run(id="brave-otter")
    run.apply(made_event("generation", node="", at=at, number=1))
    run.apply(made_event("started", node="n1", seq=1, at=at, child="0"))
    rhythm = StallDetector()
    rhythm.update(run, at)
    return run, rhythm


def stepping(run: Run, rhythm: StallDetector, steps: int, seconds: float, at: float = 100.0) -> float:
    for step in range(1, steps + 1):
        at += seconds
        run.take(Measurement(node="n1", at=at, child="0", values={"step": step, "step_seconds": seconds}))
        rhythm.update(run, at)
    return at


def watch(
    slow_from: int, slow: float, *, offset: float = 0.0, seconds: float = 60.0, every: int = 1
) -> tuple[StallDetector, float | None]:
    """Four ranks with a step every 0.13 s, of which one takes `slow` seconds longer in every n-th step from one on.

    The detector gets what it would in a run: ranks report at most five times a second, their node once a second, and
    windows of lateness are 10 s long. Returns the seconds from the slow step to the first look.
    """
    run, rhythm = started()
    meter = LatenessMeter()
    ends, arrived, at, began = [], [], 100.0, 0.0
    for step in range(1, 2000):
        late = slow if step >= slow_from and step % every == 0 else 0.0
        began = began or (at if late else 0.0)
        arrived.append((at + 0.13, at + 0.13 + late))
        at += 0.13 + late
        ends.append(at)
    reports: list[tuple[float, dict[str, float]]] = []
    reported, since, again = 0, 0.0, 0.0
    for step, end in enumerate(ends, 1):
        if end >= again:
            pace = {"step_seconds": (end - since) / (step - reported)} if reported else {}
            reports.append((end, {"step": step, **pace}))
            reported, since, again = step, end, end + 0.2
    taken = 0
    for quarter in range(int(4 * seconds)):
        now = 100.0 + offset + quarter / 4
        done = [values for end, values in reports if end <= now]
        if quarter % 4 == 0 and done:
            for rank in range(4):
                run.take(Measurement(node="n1", at=now, child=str(rank), values=done[-1]))
        rhythm.update(run, now)
        if quarter % 40 == 39:
            seqs = [seq for seq, (_, last) in enumerate(arrived) if seq >= taken and last <= now]
            for rank in range(4):
                times = {seq: arrived[seq][rank == 2] for seq in seqs}
                meter.take(
                    rank, "n1", 0.0, (GroupArrivals(key="0", name="all", times=times, last=max(seqs, default=taken)),)
                )
            taken = max(seqs, default=taken - 1) + 1
            window = meter.close_window(now, 10.0, 1)
            assert window is not None
            rhythm.take_lateness(window)
        if rhythm.due(run, now):
            return rhythm, now - began
    return rhythm, None


@pytest.mark.parametrize("step", [1, 3, 14, 40])
@pytest.mark.parametrize("offset", [0.0, 0.3, 0.6, 0.9])
def test_a_rank_that_becomes_eight_times_slower_is_looked_at(step: int, offset: float) -> None:
    """Whenever it begins: within the first reports, whose pace would be the usual one, or later."""
    rhythm, seconds = watch(step, 1.0, offset=offset)
    assert rhythm.slow
    assert seconds is not None
    assert seconds < 25


def test_a_rank_that_pauses_now_and_then_is_not_looked_at() -> None:
    """An even run is none of a slow rank; nor is one whose rank 2 evaluates for 2.5 s in every 60th step."""
    assert watch(5000, 0.0)[1] is None
    assert watch(1, 2.5, every=60)[1] is None


def test_a_slow_run_is_looked_at_ever_less_often_and_a_stuck_one_at_once() -> None:
    """Each look costs every node seconds of work; a slow run that gets stuck is news."""
    run, rhythm = started()
    at = stepping(run, rhythm, 30, 0.5)
    looks = []
    for step in range(31, 131):
        at += 2.0
        run.take(Measurement(node="n1", at=at, child="0", values={"step": step, "step_seconds": 2.0}))
        rhythm.update(run, at)
        looks += [at] if rhythm.due(run, at) else []
    assert len(looks) < 15
    assert looks[-1] - looks[-2] >= LONGEST_PAUSE_SECONDS
    stuck = [tenth / 10 for tenth in range(100) if rhythm.due(run, at + tenth / 10)]
    assert rhythm.limit(run) <= stuck[0] < rhythm.limit(run) + 0.2


def test_a_pace_that_nothing_explains_becomes_the_usual_one() -> None:
    """Such as that of a run whose first batches were there already: it is not looked at for ever."""
    run, rhythm = started()
    at = stepping(run, rhythm, 5, 0.1)
    for step in range(6, 120):
        at += 1.0
        run.take(Measurement(node="n1", at=at, child="0", values={"step": step, "step_seconds": 1.0}))
        rhythm.update(run, at)
        if rhythm.due(run, at):
            rhythm.accept_pace(at)
    assert not rhythm.slow
    assert rhythm.usual == pytest.approx(1.0)


def test_a_new_phase_starts_the_clock_again() -> None:
    """Nobody is asked while ranks come to new phases."""
    run, rhythm = started()
    assert not rhythm.due(run, 100 + LEAST_SECONDS - 0.1)
    run.apply(made_event("phase", node="n1", seq=2, at=104.0, child="0", phase="torch"))
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
    run.apply(made_event("generation", node="", at=at + 1, number=2))
    assert rhythm.update(run, at + 1)
    assert rhythm.usual is None


def test_a_node_that_is_only_silent_stops_nobody() -> None:
    """Its last step stays behind while the others' go on: that is no stall."""
    run, rhythm = started()
    run.take(Measurement(node="n2", at=100.0, child="1", values={"step": 3, "step_seconds": 0.5}))
    at = stepping(run, rhythm, 60, 0.5)
    assert not rhythm.due(run, at + 1)
