"""What may change between a checkpoint and the run that continues it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from saving import checkpoints, resumed, save, standing, training

from aboard.diagnoses import AboardError
from aboard.trainer.checkpoint.commit_marker import RunSettings
from aboard.trainer.checkpoint.saved_checkpoint import SavedCheckpoint
from aboard.trainer.checkpoint.setting_differences import find_differences, refuse_differences


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("differences")
    save(made, 1)
    return made


def test_the_same_settings_show_nothing(folder: Path) -> None:
    """A run that was killed and started again has nothing to explain."""
    assert resumed(folder)[1] == [f"resumed from {folder / 'step-000001'}, step 1"]


@pytest.mark.parametrize(
    ("changed", "said", "fix"),
    [
        ({"seed": 7}, "seed: 42 → 7: it determines the data order", "--set train.seed=42    # as in the checkpoint"),
        (
            {"max_length": 16},
            "max_length: 8 → 16: sequences were packed for a different length",
            "--set data.max_length=8",
        ),
        ({"global_batch_size": 8}, "sequences per step: 4 → 8: a step would use", "--set train.global_batch_size=4"),
        ({"global_batch_size": None}, "sequences per step: 4 → 1", "--set train.global_batch_size=4"),
    ],
)
def test_what_would_be_another_training_is_refused(folder: Path, changed: dict[str, Any], said: str, fix: str) -> None:
    """The reason is given, and what to type to keep it or to start anew."""
    with pytest.raises(AboardError) as caught:
        resumed(folder, **changed)
    assert caught.value.code == "checkpoint-differs"
    assert said in caught.value.seen
    assert caught.value.fix.startswith(fix)
    assert "to start over: resume: none" in caught.value.fix


@pytest.mark.parametrize(
    "changed",
    [
        {"learning_rate": 1e-3},
        {"max_steps": 9},
        {"save_steps": 5},
        {"per_device_train_batch_size": 2},
        {"gradient_checkpointing": True},
    ],
    ids=str,
)
def test_what_a_run_may_change_is_shown(folder: Path, changed: dict[str, Any]) -> None:
    """Each as old → new."""
    ((name, value),) = changed.items()
    step, notes = resumed(folder, **changed)
    assert step == 1
    assert notes[1:] == [f"changed since the checkpoint: {name}: {getattr(training(folder), name)} → {value}"]


def test_where_it_lies_is_no_difference(folder: Path) -> None:
    """The same model and output under another path, as on another machine."""
    assert len(resumed(folder, output_dir="/elsewhere", model="/other/m", resume="auto")[1]) == 1


def test_another_model_is_refused(folder: Path) -> None:
    """By its tensors: the first that differs is named, with both shapes."""
    engine, optimizer = standing(width=128)
    store = checkpoints(folder)
    with pytest.raises(AboardError) as caught:
        store.resume(engine, optimizer)
    store.close()
    assert caught.value.code == "checkpoint-differs"
    assert (
        "embedding.weight is F32 [101, 256] in the checkpoint, F32 [101, 128] in this model (and " in caught.value.seen
    )


def test_other_data_and_another_configuration_are_refused(folder: Path) -> None:
    """Compared by content; what only one version of transformers knows doesn't count, nor how it was loaded."""
    marker = replace(
        SavedCheckpoint.open(folder / "step-000001").marker, config={"rope": 1, "use_cache": True, "old": 1}
    )
    same = {name: getattr(marker, name) for name in RunSettings.__dataclass_fields__}
    now = RunSettings(
        **same | {"data": "f" * 64, "config": {"rope": 2, "use_cache": False, "new": 2, "pad_token_id": 3}}
    )
    found = find_differences(marker, now)
    assert [each.name for each in found if each.refused] == ["data", "model's rope"]
    with pytest.raises(AboardError, match="the prepared data has different content"):
        refuse_differences(found, "step-000001")
