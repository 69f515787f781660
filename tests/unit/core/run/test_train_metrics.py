"""A trainer's figures on their way: from its rank by the beacon to the head, into the curve, and onto the screen."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deadlines import until
from hypothesis import given, strategies as st
from made_events import made_event
from supervisor_runs import Run, held

from aboard.agent import frames
from aboard.commands.train.training_payload import build_code_archive
from aboard.core.plan.plan import Start
from aboard.core.run.events import Measurement
from aboard.core.run.run_state import Run as Fold
from aboard.core.run.training_metrics import MOST_POINTS, LossCurve, StepTime, TrainingStatus
from aboard.engine.records.status import summarize_run
from aboard.record.run_record import Record
from aboard.record.runs import Runs
from aboard.trainer.metrics.head_beacon import send_metrics
from aboard.transport.node_session import NodeSession
from aboard.transport.supervisor_messages import parse_measurements

# A rank that has nothing but the code that was brought along, on a Python without site packages of ours.
RANK = """
import sys, time
from aboard.trainer.metrics.head_beacon import send_metrics
figures = {"step": 3, "steps": 9, "loss": 1.5, "grad_norm": float("nan"), "mfu": None, "seconds": {"data": 1.0}}
send_metrics({**figures, "odd": 7})
print(sys.modules["aboard"].__file__, flush=True)
time.sleep(60)
"""


@pytest.mark.ci
def test_figures_come_from_a_rank_to_the_head(clean: list[Run]) -> None:
    """By the code that is brought along, which is what the rank imports; only numbers that are shown are carried."""
    run = Run()
    clean.append(run)
    samples: list[dict[str, Any]] = []

    async def story(hold: NodeSession) -> None:
        hold._on_samples = lambda _node, told: samples.append(told)
        await hold.send_code(build_code_archive())
        # Twice, as after a cut: that is harmless.
        await hold.send_code(build_code_archive())
        await hold.start(Start(child="0", argv=(sys.executable, "-c", RANK), beacon=True, code=True))
        await until(lambda: samples and "metrics" in samples[-1]["children"].get("0", {}), 30)
        await hold.end(grace=0.0)

    held(run, story)
    assert samples[-1]["children"]["0"]["metrics"] == {"step": 3.0, "steps": 9.0, "loss": 1.5}
    assert f"{run.place}/code.zip/aboard/__init__.py" in run.output("0").decode()


@pytest.mark.ci
def test_the_last_figures_come_with_the_end(clean: list[Run]) -> None:
    """A rank that tells and ends at once, between two samples, is heard out."""
    run = Run()
    clean.append(run)
    samples: list[dict[str, Any]] = []
    last = "from aboard.trainer.metrics.head_beacon import send_metrics; send_metrics({'step': 9, 'loss': 0.5})"

    async def story(hold: NodeSession) -> None:
        hold._on_samples = lambda _node, told: samples.append(told)
        await hold.send_code(build_code_archive())
        await hold.start(Start(child="0", argv=(sys.executable, "-c", last), beacon=True, code=True))
        await until(lambda: "exited" in run.kinds("0") and run.finished("0"), 30)

    held(run, story)
    assert samples[-1]["children"]["0"]["metrics"] == {"step": 9.0, "loss": 0.5}


RESUMED = """
from types import SimpleNamespace
import aboard_beacon, aboard_beacon_torch
from aboard.trainer.metrics.head_beacon import set_first_step
set_first_step(32)
steps = aboard_beacon_torch.Steps(aboard_beacon.armed)
optimizer = SimpleNamespace(param_groups=[{"params": [object()]}])
for _ in range(18):
    steps.take(optimizer)
"""


@pytest.mark.ci
def test_a_rank_that_resumed_reports_the_steps_of_its_training(clean: list[Run]) -> None:
    """18 steps after a resume from step 32 are step 50, also for a rank that exits between two samples."""
    run = Run()
    clean.append(run)
    samples: list[dict[str, Any]] = []

    async def story(hold: NodeSession) -> None:
        hold._on_samples = lambda _node, told: samples.append(told)
        await hold.send_code(build_code_archive())
        await hold.start(Start(child="1", argv=(sys.executable, "-c", RESUMED), beacon=True, code=True))
        await until(lambda: "exited" in run.kinds("1") and run.finished("1"), 30)

    held(run, story)
    assert samples[-1]["children"]["1"]["step"] == 50


def test_alone_nobody_is_told() -> None:
    """A trainer without a launcher has no beacon, and that is no error."""
    send_metrics({"step": 1, "loss": 2.0})


@pytest.mark.parametrize("metrics", [7, {"loss": "high"}, {"loss": float("nan")}, {"loss": 2**60}, {"step": None}])
def test_figures_that_are_none_break_the_protocol(metrics: Any) -> None:
    """A node that lies is not believed; what it names that we don't know is left out."""
    with pytest.raises(frames.FrameError):
        parse_measurements({"samples": {"wall": 1.0, "children": {"a": {"metrics": metrics}}}}, 0.0, {"a"})
    found = parse_measurements(
        {"samples": {"wall": 1.0, "children": {"a": {"metrics": {"odd": "x", "loss": 1}}}}}, 0.0, {"a"}
    )
    assert found["children"]["a"]["metrics"] == {"loss": 1.0}


def test_a_run_remembers_the_latest_figures_and_the_curve() -> None:
    """An evaluation's loss stays beside the losses that come after it."""
    run = Fold(id="r")
    run.take(Measurement(node="n", at=1.0, child="0", metrics={"step": 1, "loss": 3.0}))
    run.take(Measurement(node="n", at=2.0, child="0", metrics={"step": 2, "eval_loss": 2.5}))
    run.take(Measurement(node="n", at=3.0, child="0", metrics={"step": 3, "loss": 2.0}))
    assert run.metrics == {"step": 3, "loss": 2.0, "eval_loss": 2.5}
    assert run.curve.points == [(1, 3.0), (3, 2.0)]


def test_a_run_has_one_step_which_is_the_slowest_ranks() -> None:
    """A log line is newer than the beacon's last report; what a rank reported stays after its end."""
    run = Fold(id="r")
    run.take(Measurement(node="n1", at=1.0, child="0", values={"step": 48}, metrics={"step": 50, "loss": 2.0}))
    run.take(Measurement(node="n2", at=1.0, child="1", values={"step": 52}))
    assert run.step == 50
    run.take(Measurement(node="n1", at=2.0, child="0", values={"step": 57}, metrics={"step": 50, "loss": 2.0}))
    run.take(Measurement(node="n2", at=2.0, child="1"))
    run.take(Measurement(node="n1", at=3.0, child="0", metrics={"step": 50}))
    assert (run.step, run.steps["n1", "0"]) == (52, 57)


@pytest.mark.parametrize(("end", "step"), [({}, 55), ({"why": "w", "code": 1, "step": 62}, 62)])
def test_status_has_the_step_that_the_run_showed(tmp_path: Path, end: dict[str, Any], step: int) -> None:
    """While it runs from its samples, afterwards from its end, though samples may be thinned by then."""
    run = Runs(tmp_path).create(datetime.now(UTC), Random(1))  # noqa: S311 - a name, no secret
    record = Record.open(run, ranks=2)
    metrics = {"step": 50.0}
    record.samples("n1", 1.0, {"children": {"0": {"step": 57, "metrics": metrics}, "1": {"step": 55}}})
    record.samples("n1", 2.0, {"children": {"0": {"metrics": metrics}}})
    if end:
        record.event(made_event("finished", node="", at=3.0, **end))
    record.close()
    assert summarize_run(run).step == step


def test_the_time_left_follows_steps_that_are_smoothed() -> None:
    """The first window warms up; a slow window moves the estimate by its weight, and a lasting change wins."""
    first = StepTime().after(9.0, 10)
    assert first.seconds == 9.0
    known = first.after(1.0, 10)
    assert known.seconds == 1.0
    for _ in range(20):
        known = known.after(1.0, 10)
    paused = known.after(5.0, 1)
    assert paused.seconds == pytest.approx(1.08)
    for _ in range(40):
        paused = paused.after(2.0, 10)
    assert paused.seconds == pytest.approx(2.0, rel=0.01)


def test_the_time_left_shrinks_with_the_steps_since_the_last_log_line() -> None:
    """Steps come more often than log lines; where the trainer tells no estimate, there is none."""
    metrics = {"step": 50.0, "steps": 100.0, "eta": 200.0, "saved": 40.0}
    assert TrainingStatus(metrics=metrics).left == 200.0
    assert (TrainingStatus(metrics=metrics, at=75).left, TrainingStatus(metrics=metrics, at=75).share) == (100.0, 0.75)
    assert TrainingStatus(metrics=metrics, at=101).left == 0.0
    assert TrainingStatus(metrics={"step": 3.0}).left is None
    assert (TrainingStatus(metrics=metrics).saved, TrainingStatus(metrics={}).saved) == (40, None)


@given(st.lists(st.integers(1, 5), max_size=3000))
def test_a_curve_stays_small_and_keeps_its_ends(gaps: list[int]) -> None:
    """However long a run is: the first and the newest point are there, in order, and few between them."""
    curve, step = LossCurve(), 0
    for gap in gaps:
        step += gap
        curve.add(step, float(step))
    steps = [at for at, _ in curve.points]
    assert len(steps) <= MOST_POINTS
    assert steps == sorted(set(steps))
    if gaps:
        assert (steps[0], steps[-1]) == (gaps[0], step)


def test_a_curve_goes_back_with_a_run_that_resumes() -> None:
    """What was drawn beyond the checkpoint is drawn anew."""
    curve = LossCurve()
    for step in (1, 2, 3, 4):
        curve.add(step, 1.0)
    curve.add(3, 0.5)
    assert curve.points == [(1, 1.0), (2, 1.0), (3, 0.5)]
