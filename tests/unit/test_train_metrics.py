"""A trainer's figures on their way: from its rank by the beacon to the head, into the curve, and onto the screen."""

import sys
from typing import Any

import pytest
from deadlines import until
from hypothesis import given
from hypothesis import strategies as st
from keeping import Run, held

from aboard.agent import frames
from aboard.core.event import Sample
from aboard.core.metrics import MOST_POINTS, Curve
from aboard.core.plan import Start
from aboard.core.run import Run as Fold
from aboard.flows.train_code import code
from aboard.train.beacon import tell
from aboard.wires.hold import Hold
from aboard.wires.told import samples_of

# A rank that has nothing but the code that was brought along, on a Python without site packages of ours.
RANK = """
import sys, time
from aboard.train.beacon import tell
tell({"step": 3, "steps": 9, "loss": 1.5, "grad_norm": float("nan"), "mfu": None, "seconds": {"data": 1.0}, "odd": 7})
print(sys.modules["aboard"].__file__, flush=True)
time.sleep(60)
"""


def test_figures_come_from_a_rank_to_the_head(clean: list[Run]) -> None:
    """By the code that is brought along, which is what the rank imports; only numbers that are shown are carried."""
    run = Run()
    clean.append(run)
    samples: list[dict[str, Any]] = []

    async def story(hold: Hold) -> None:
        hold._on_samples = lambda _node, told: samples.append(told)
        await hold.bring(code())
        # Twice, as after a cut: that is harmless.
        await hold.bring(code())
        await hold.start(Start(child="0", argv=(sys.executable, "-c", RANK), beacon=True, code=True))
        await until(lambda: samples and "metrics" in samples[-1]["children"].get("0", {}), 30)
        await hold.end(grace=0.0)

    held(run, story)
    assert samples[-1]["children"]["0"]["metrics"] == {"step": 3.0, "steps": 9.0, "loss": 1.5}
    assert f"{run.place}/code.zip/aboard/__init__.py" in run.output("0").decode()


def test_the_last_figures_come_with_the_end(clean: list[Run]) -> None:
    """A rank that tells and ends at once, between two samples, is heard out."""
    run = Run()
    clean.append(run)
    samples: list[dict[str, Any]] = []
    last = "from aboard.train.beacon import tell; tell({'step': 9, 'loss': 0.5})"

    async def story(hold: Hold) -> None:
        hold._on_samples = lambda _node, told: samples.append(told)
        await hold.bring(code())
        await hold.start(Start(child="0", argv=(sys.executable, "-c", last), beacon=True, code=True))
        await until(lambda: "exited" in run.kinds("0") and run.finished("0"), 30)

    held(run, story)
    assert samples[-1]["children"]["0"]["metrics"] == {"step": 9.0, "loss": 0.5}


def test_alone_nobody_is_told() -> None:
    """A trainer without a launcher has no beacon, and that is no error."""
    tell({"step": 1, "loss": 2.0})


@pytest.mark.parametrize("metrics", [7, {"loss": "high"}, {"loss": float("nan")}, {"loss": 2**60}, {"step": None}])
def test_figures_that_are_none_break_the_protocol(metrics: Any) -> None:
    """A node that lies is not believed; what it names that we don't know is left out."""
    with pytest.raises(frames.FrameError):
        samples_of({"samples": {"wall": 1.0, "children": {"a": {"metrics": metrics}}}}, 0.0, {"a"})
    found = samples_of({"samples": {"wall": 1.0, "children": {"a": {"metrics": {"odd": "x", "loss": 1}}}}}, 0.0, {"a"})
    assert found["children"]["a"]["metrics"] == {"loss": 1.0}


def test_a_run_remembers_the_latest_figures_and_the_curve() -> None:
    """An evaluation's loss stays beside the losses that come after it."""
    run = Fold(id="r")
    run.take(Sample(node="n", at=1.0, child="0", metrics={"step": 1, "loss": 3.0}))
    run.take(Sample(node="n", at=2.0, child="0", metrics={"step": 2, "eval_loss": 2.5}))
    run.take(Sample(node="n", at=3.0, child="0", metrics={"step": 3, "loss": 2.0}))
    assert run.metrics == {"step": 3, "loss": 2.0, "eval_loss": 2.5}
    assert run.curve.points == [(1, 3.0), (3, 2.0)]


@given(st.lists(st.integers(1, 5), max_size=3000))
def test_a_curve_stays_small_and_keeps_its_ends(gaps: list[int]) -> None:
    """However long a run is: the first and the newest point are there, in order, and few between them."""
    curve, step = Curve(), 0
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
    curve = Curve()
    for step in (1, 2, 3, 4):
        curve.add(step, 1.0)
    curve.add(3, 0.5)
    assert curve.points == [(1, 1.0), (2, 1.0), (3, 0.5)]
