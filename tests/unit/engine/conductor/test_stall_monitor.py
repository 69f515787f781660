"""The progress watch: it asks when nothing moves, says each cause once, and takes it back when the run moves."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from made_events import made_event
from made_findings import made_finding

from aboard.core.evidence.verdict import Judgement
from aboard.core.run.run_state import Run
from aboard.diagnoses import Finding, Severity
from aboard.engine.conductor import stall_monitor as watch_module
from aboard.engine.conductor.stall_monitor import StallMonitor

LATE = 20.0


def finding(code: str = "hang-absent", severity: Severity = Severity.BLOCK) -> Finding:
    return made_finding(code=code, severity=severity, nodes=("n2",), ranks=(3,), seen="s", why="w", fix="f")


def started() -> Run:
    run = Run(id="brave-otter")
    run.apply(made_event("generation", node="", at=0.0, number=1))
    return run


def told_by(answers: list[Judgement], story: Callable[[StallMonitor, Run], Any]) -> list[str | None]:
    """What a watch tells that gets these answers, the last of them again and again."""
    told: list[str | None] = []

    async def ask() -> Judgement:
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def run() -> None:
        watch = StallMonitor(ask, lambda found: told.append(found.code if found is not None else None))
        await story(watch, started())
        await watch.close()

    asyncio.run(run())
    return told


async def settled(watch: StallMonitor, run: Run, now: float) -> None:
    """A tick, and all that it set going."""
    watch.tick(run, now)
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_cause_is_told_once_and_taken_back() -> None:
    """The same answer again is no news; that the run moves is."""

    async def story(watch: StallMonitor, run: Run) -> None:
        await settled(watch, run, 0.0)
        await settled(watch, run, LATE)
        await settled(watch, run, 2 * LATE)
        run.apply(made_event("started", node="n1", seq=1, at=41.0, child="0"))
        await settled(watch, run, 41.0)

    assert told_by([Judgement(findings=(finding(),))], story) == ["hang-absent", None]


def test_what_is_only_noted_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that takes long is no verdict; one that turns out to be another cause is."""

    async def story(watch: StallMonitor, run: Run) -> None:
        for number in range(4):
            await settled(watch, run, number * LATE)

    monkeypatch.setattr(watch_module, "GOES_ON_SECONDS", 0.0)
    noted = Judgement(findings=(finding("hang-busy", Severity.INFO),))
    assert told_by([noted, noted, Judgement(findings=(finding("hang-mount"),))], story) == ["hang-mount"]


def test_a_pause_that_ends_this_moment_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was seen at a checkpoint, and is elsewhere now, gets the time to make a step before it is called stuck."""
    monkeypatch.setattr(watch_module, "GOES_ON_SECONDS", 0.02)

    async def story(watch: StallMonitor, run: Run) -> None:
        await settled(watch, run, 0.0)
        await settled(watch, run, LATE)
        await settled(watch, run, 2 * LATE)
        run.apply(made_event("started", node="n1", seq=1, at=41.0, child="0"))
        await settled(watch, run, 41.0)
        await asyncio.sleep(0.1)

    noted = Judgement(findings=(finding("hang-busy", Severity.INFO),))
    assert told_by([noted, Judgement(findings=(finding(),))], story) == []


def test_an_answer_that_comes_too_late_is_not_told() -> None:
    """The run went on while its nodes were asked."""

    async def story(watch: StallMonitor, run: Run) -> None:
        await settled(watch, run, 0.0)
        watch.tick(run, LATE)
        run.apply(made_event("started", node="n1", seq=1, at=LATE, child="0"))
        await settled(watch, run, LATE + 0.1)

    assert told_by([Judgement(findings=(finding(),))], story) == []


def test_one_that_stays_is_acted_upon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a cause that stops a run, and only when it is still there some seconds later."""
    acted: list[Judgement] = []
    now = [100.0]
    monkeypatch.setattr(watch_module, "time", lambda: now[0])

    async def run() -> None:
        async def ask() -> Judgement:
            return Judgement(findings=(finding(),))

        watch = StallMonitor(ask, lambda _found: None, acted.append)
        given = started()
        await settled(watch, given, 0.0)
        await settled(watch, given, LATE)
        assert acted == []
        now[0] += 30
        await settled(watch, given, 2 * LATE)
        await watch.close()

    asyncio.run(run())
    assert len(acted) == 1


def test_a_verdict_is_confirmed_when_it_is_acted_upon() -> None:
    """However long the pauses between two looks have become; until then, it says when."""
    acted: list[float] = []
    asked: list[float] = []
    now = [100.0]

    async def run() -> None:
        async def ask() -> Judgement:
            asked.append(now[0])
            return Judgement(findings=(finding(),))

        watch = StallMonitor(ask, lambda _found: None, lambda _why: acted.append(now[0]), stays=60.0)
        given = started()
        watch.tick(given, 90.0)
        for second in range(100, 170):
            now[0] = float(second)
            await settled(watch, given, now[0])
            assert watch.acts_at == (asked[0] + 60 if acted or asked else None)
        await watch.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_module, "time", lambda: now[0])
        asyncio.run(run())
    assert acted[0] == asked[0] + 60
    assert acted[0] in asked


@pytest.mark.parametrize(("code", "severity"), [("slow-rank", Severity.WARN), ("hang-busy", Severity.INFO)])
def test_a_slow_or_busy_run_is_never_acted_upon(code: str, severity: Severity) -> None:
    """It progresses."""
    acted: list[Judgement] = []

    async def run() -> None:
        async def ask() -> Judgement:
            return Judgement(findings=(finding(code, severity),))

        watch = StallMonitor(ask, lambda _found: None, acted.append, stays=0.0)
        given = started()
        for number in range(4):
            await settled(watch, given, number * LATE)
        assert watch.acts_at is None
        await watch.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_module, "GOES_ON_SECONDS", 0.0)
        asyncio.run(run())
    assert acted == []


def test_a_loss_that_is_no_number_is_looked_at_though_the_run_moves() -> None:
    """Steps go on, so nothing is quiet: what a rank says is the reason to ask, and keeps the verdict standing."""

    async def story(watch: StallMonitor, run: Run) -> None:
        await settled(watch, run, 0.0)
        for second in range(1, 12):
            run.apply(made_event("started", node="n1", seq=second, at=float(second), child=str(second)))
            watch.suspect(float(second))
            await settled(watch, run, float(second))
        run.apply(made_event("started", node="n1", seq=99, at=100.0, child="99"))
        await settled(watch, run, 100.0)

    lost = Judgement(findings=(finding("loss-no-number", Severity.WARN),))
    assert told_by([Judgement(), lost], story) == ["loss-no-number", None]
