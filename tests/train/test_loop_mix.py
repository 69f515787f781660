"""Several sources in one training: by weight, in an order that neither ranks nor a resume change."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import tiny_data
from train_cases import curve, failed, touched, trained
from train_crew import Crew

from aboard.core.plan.training_settings import DataPart, Training
from aboard.trainer.checkpoint.checkpoint_folder import list_published
from aboard.trainer.checkpoint.saved_checkpoint import SavedCheckpoint
from aboard.trainer.progress import TrainingProgress
from aboard.trainer.training_data import open_training_data

Settled = Callable[..., Training]
STEPS, BATCH = 8, 4


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[DataPart, ...]:
    """A large source that is a quarter of the mix, and a small one that is gone through several times."""
    folder = tmp_path_factory.mktemp("mix")
    large = tiny_data(folder, documents=120, name="large", weight=1.0)
    return large, tiny_data(folder, documents=12, name="small", weight=3.0, seed=3)


def last(training: Training) -> TrainingProgress:
    return TrainingProgress.of(SavedCheckpoint.open(list_published(Path(training.output_dir))[-1]).marker.progress)


def test_ranks_and_a_resume_leave_the_samples_of_a_mix_as_they_are(
    parts: tuple[DataPart, ...], settled: Settled, crew: Crew
) -> None:
    """One rank, two ranks, and two ranks that stop and go on as one: the same sample ids, and the same losses."""
    training = settled(data=parts, max_steps=STEPS, global_batch_size=BATCH)
    alone, two = (replace(training, output_dir=f"{training.output_dir}-{name}") for name in ("alone", "two"))
    crew.run(1, trained, alone)
    crew.run(2, trained, two)
    assert crew.run(2, trained, touched(training, "STOP")) == ["STOP", "STOP"]
    assert 0 < last(training).step < STEPS
    crew.run(1, trained, training)
    assert last(alone) == last(two) == last(training)
    assert last(alone).index == STEPS * BATCH
    for found in (two, training):
        assert [loss for loss, _ in curve(found)] == pytest.approx([loss for loss, _ in curve(alone)], rel=1e-5)


def test_each_source_has_its_share(parts: tuple[DataPart, ...]) -> None:
    """Three of four sequences are of the small source, which comes again in another order when it is through."""
    stream = open_training_data(parts)
    size = len(stream.sources["small"])
    drawn = [draw for draw in map(stream.shuffle_sources(42), range(8 * size)) if draw.source == "small"]
    assert len(drawn) == 6 * size
    first, second = ([draw.bin for draw in drawn if draw.epoch == epoch] for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(size))
    assert first != second


@pytest.mark.parametrize("changed", [{"weight": 2.0}, {"name": "other"}])
def test_another_mix_is_another_training(
    changed: dict[str, object], parts: tuple[DataPart, ...], settled: Settled, crew: Crew
) -> None:
    """Another weight or another name would draw other samples: it is refused, not continued."""
    training = settled(data=parts, max_steps=STEPS, global_batch_size=BATCH)
    crew.run(1, trained, touched(training, "STOP"))
    other = replace(training, data=(parts[0], replace(parts[1], **changed)))  # type: ignore[arg-type]
    ((code, seen),) = crew.run(1, failed, other)
    assert code == "checkpoint-differs"
    assert "different content, packing or mix" in seen
