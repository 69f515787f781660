"""The best evaluation: its checkpoint is kept and exported; evaluations that don't improve end a run."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import pytest
from tiny import tiny_data
from train_cases import lines, trained
from train_crew import Crew

from aboard.commands.shared.local_checkpoints import choose_checkpoint, read_intact_marker
from aboard.core.plan.training_settings import Training
from aboard.trainer.checkpoint.best_evaluation import BestEvaluation

Settled = Callable[..., Training]


@pytest.fixture
def rising(settled: Settled, shelf: Path) -> Training:
    """A training whose learning rate is too high: its eval loss is lowest at step 6, and higher at 8 and 10."""
    held = tiny_data(shelf / "validation", "packed", documents=40, name="validation", seed=2)
    return settled(
        max_steps=14,
        global_batch_size=2,
        learning_rate=3e-2,
        lr_scheduler_type="constant",
        logging_steps=100,
        validation=(held,),
        eval_steps=2,
        early_stopping_patience=2,
        load_best_model_at_end=True,
    )


def evaluated(training: Training) -> dict[int, float]:
    return {line["step"]: line["eval_loss"] for line in lines(training) if "eval_loss" in line}


def best_of(training: Training, name: str) -> BestEvaluation:
    marker = read_intact_marker(Path(training.output_dir, name))
    assert marker is not None
    return BestEvaluation.of(marker.state)


def saved(training: Training) -> list[str]:
    return sorted(path.parent.name for path in Path(training.output_dir).glob("step-*/manifest.json"))


@pytest.mark.parametrize("world", [1, 2])
def test_the_best_checkpoint_is_kept_and_patience_ends_the_run(world: int, rising: Training, crew: Crew) -> None:
    """With a limit of one, the best and the last remain; the best is exported; the same command trains no further."""
    training = replace(rising, save_total_limit=1)
    assert crew.run(world, trained, training) == ["NOTHING"] * world
    losses = evaluated(training)
    assert list(losses) == [2, 4, 6, 8, 10]
    assert min(losses, key=lambda step: losses[step]) == 6
    assert saved(training) == ["step-000006", "step-000010"]
    last = best_of(training, "step-000010")
    assert (last.step, last.loss, last.stale, last.kept) == (6, losses[6], 2, True)
    chosen = choose_checkpoint(Path(training.output_dir), None)
    assert chosen is not None
    assert (chosen.path.name, chosen.best) == ("step-000006", last)
    assert [line["step"] for line in lines(training) if "loss" in line] == [10]
    before = [line for line in lines(training) if "wall" not in line]
    assert crew.run(1, trained, training) == ["NOTHING"]
    assert [line for line in lines(training) if "wall" not in line] == before


def test_a_resume_continues_with_the_same_best_and_patience(rising: Training, crew: Crew) -> None:
    """From a checkpoint between two evaluations, on another number of ranks, it stops at the same step."""
    training = replace(rising, save_steps=3)
    crew.run(1, trained, training)
    assert saved(training) == [f"step-{step:06}" for step in (2, 3, 4, 6, 9, 10)]
    whole = best_of(training, "step-000010")
    assert best_of(training, "step-000009").stale == 1
    rmtree(Path(training.output_dir, "step-000010"))
    crew.run(2, trained, training)
    again = best_of(training, "step-000010")
    assert (again.step, again.stale, again.loss) == (6, 2, whole.loss)


@pytest.mark.nightly
def test_losses_on_another_validation_set_are_not_compared(rising: Training, shelf: Path, crew: Crew) -> None:
    """The first evaluation on the new set is the best of it, and restarts the patience."""
    training = replace(rising, max_steps=6)
    crew.run(1, trained, training)
    other = replace(training, validation=(tiny_data(shelf / "packed", "packed"),), max_steps=7)
    crew.run(1, trained, other)
    assert best_of(training, "step-000007").step == 7
