"""How a training ends before its end: a signal, a touched file, a step that isn't finite. All ranks do the same."""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from deadlines import slowness, wait_until
from tiny import tiny_data
from train_cases import curve, failed, lines, poisoned, terminated, touched, trained
from train_crew import Crew
from train_reference import references

from aboard.core.plan.training_settings import DataPart, Training
from aboard.trainer.__main__ import main

Settled = Callable[..., Training]
CLOSE = 1e-5


def saved(training: Training) -> list[str]:
    return sorted(path.parent.name for path in Path(training.output_dir).glob("step-*/manifest.json"))


def test_sigterm_on_one_rank_saves_and_ends_all(settled: Settled, crew: Crew) -> None:
    """The last rank is told to end; both save the same step, and a resume goes on behind it."""
    training = settled(max_steps=400, global_batch_size=2, logging_steps=400, sharding="full")
    assert crew.run(2, terminated, training, 1) == ["TERMINATE", "TERMINATE"]
    (last,) = [line["step"] for line in lines(training) if "loss" in line]
    assert last < 400
    assert saved(training) == [f"step-{last:06}"]
    assert crew.run(1, trained, touched(training, "STOP")) == ["STOP"]
    assert [line["step"] for line in lines(training) if "loss" in line] == [last, last + 2]


def test_sigterm_is_answered_with_143(settled: Settled, crew: Crew) -> None:
    """Who sends SIGTERM to a rank of its own sees that it was heard, and finds a checkpoint."""
    training = settled(max_steps=100_000, logging_steps=5)
    rank = crew.start_process(run_rank, training)
    assert rank.pid is not None
    wait_until(lambda: lines(training), 120, "its first figures")
    os.kill(rank.pid, signal.SIGTERM)
    rank.join(60 * slowness())
    assert rank.exitcode == 143
    assert len(saved(training)) == 1


def run_rank(training: Training) -> None:
    """As `python -m aboard.trainer` does, in a process that has torch already."""
    os.environ["ABOARD_TRAINING"] = json.dumps(asdict(training))
    sys.exit(main())


def test_touching_save_saves_and_goes_on(settled: Settled, crew: Crew) -> None:
    """SAVE in the output directory is a checkpoint of that moment, and is gone; the training ends as ever."""
    training = settled(max_steps=5, logging_steps=5)
    assert crew.run(2, trained, touched(training, "SAVE")) == ["NOTHING", "NOTHING"]
    assert saved(training) == ["step-000002", "step-000005"]
    assert not (Path(training.output_dir) / "SAVE").exists()


@pytest.fixture
def poison(settled: Settled, shelf: Path, tmp_path: Path, crew: Crew) -> tuple[Training, DataPart]:
    """A training with one document that a model's embedding answers with nan."""
    model = crew.run(1, poisoned, tmp_path / "model", shelf / "qwen2", "Z")[0]
    data = tiny_data(tmp_path / "data", documents=30, name="bad", added=("Zab=st",))
    training = settled("qwen2", model=model, data=(data,), global_batch_size=2, max_steps=15, logging_steps=1)
    return training, data


@pytest.mark.parametrize(("world", "sharding"), [(1, "none"), (2, "none"), (2, "full")])
def test_a_step_that_is_not_finite_changes_nothing(
    world: int, sharding: str, poison: tuple[Training, DataPart], crew: Crew
) -> None:
    """It is left out: weights, moments and the counts of the optimizer are as if it had never been, on all ranks."""
    training = replace(poison[0], sharding=sharding, on_nonfinite="skip")  # type: ignore[arg-type]
    (truth,) = crew.run(1, references, [(training, 2)])[0]
    crew.run(world, trained, training)
    found = [line for line in lines(training) if "loss" in line]
    bad = [place for place, (loss, _) in enumerate(truth) if loss != loss]  # noqa: PLR0124 - nan is not itself
    assert [place for place, line in enumerate(found) if line["skipped"]] == bad
    assert 0 < len(bad) < len(truth) - 1
    assert [(line["loss"], line["grad_norm"]) for line in found] == [
        (None, None) if place in bad else pytest.approx(step, rel=CLOSE) for place, step in enumerate(truth)
    ]


def test_a_step_that_is_not_finite_is_named(poison: tuple[Training, DataPart], crew: Crew) -> None:
    """With `stop`, the next log line ends all ranks alike, with the rank, the bin and the row that it came from."""
    training = replace(poison[0], logging_steps=15)
    answers = crew.run(2, failed, training)
    assert answers[0] == answers[1]
    code, seen = answers[0]
    assert code == "train-nonfinite"
    assert "the loss is not finite on rank " in seen
    assert " of bad (" in seen
    assert curve(training)
