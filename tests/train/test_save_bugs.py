"""The silent bugs of other trainers' checkpoints, each with a test that would have shown it; numbers as in our list."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import save_cases
import torch
from saving import checkpoints, progress, put, save, standing
from train_cases import curve, touched, trained
from train_crew import Crew

from aboard.core.plan.training_settings import Training
from aboard.trainer.batch_plan import BatchPlanner
from aboard.trainer.checkpoint.checkpoint_folder import list_published
from aboard.trainer.checkpoint.saved_checkpoint import SavedCheckpoint
from aboard.trainer.data.sampling.source_mixing import SequenceDraw, mix_sources
from aboard.trainer.progress import TrainingProgress
from aboard.trainer.training_data import open_training_data

Settled = Callable[..., Training]


def beside(training: Training, name: str) -> Training:
    """The same in a folder of its own."""
    return replace(training, output_dir=f"{training.output_dir}-{name}")


def last(training: Training) -> TrainingProgress:
    """What the last checkpoint of a training says of how far it is."""
    return TrainingProgress.of(SavedCheckpoint.open(list_published(Path(training.output_dir))[-1]).marker.progress)


@pytest.mark.parametrize(("family", "tied"), [("llama", True), ("qwen2", False)])
def test_bug_15_a_tied_head_comes_back_tied(family: str, tied: bool, settled: Settled, crew: Crew) -> None:  # noqa: FBT001 - pytest's
    """Automodel#2571: the losses after a resume are those without it, to the bit, and a tied head is stored once."""
    training = settled(family, max_steps=6, global_batch_size=4, sharding="full")
    crew.run(2, trained, beside(training, "whole"))
    crew.run(2, trained, touched(training, "STOP"))
    assert len(curve(training)) < 6
    crew.run(2, trained, training)
    assert curve(training) == curve(beside(training, "whole"))
    saved = SavedCheckpoint.open(list_published(Path(training.output_dir))[-1])
    assert ("lm_head.weight" in saved.marker.ties) is tied
    assert ("lm_head.weight" in saved.model()) is not tied


def test_bug_16_an_interrupted_save_does_not_stop_later_ones(settled: Settled, crew: Crew) -> None:
    """Automodel#3261: beside one rank's files of a save that was cut off, all ranks go on, and save that step again."""
    training = settled(global_batch_size=4, sharding="full")
    saved = crew.run(2, save_cases.save, training, 1)
    torn = Path(training.output_dir) / "step-000002"
    torn.mkdir()
    (torn / "rank-00001-000.safetensors").write_bytes(b"half")
    (torn / "manifest.json.part").write_bytes(b"{")
    came = crew.run(2, save_cases.resume, training)
    assert [each.hashes for each in came] == saved
    assert all(each.notes[0].startswith("skipped step-000002: it was never completed") for each in came)
    crew.run(2, save_cases.save, training, 2)
    assert crew.run(2, save_cases.resume, training)[1].progress == TrainingProgress(step=2, index=8, ids=f"{2:032x}")


def test_bug_17_fewer_ranks_go_on_with_all_of_the_data(settled: Settled, crew: Crew) -> None:
    """torchtitan#816, Megatron-Bridge#5637: 4 ranks and then 2 consume what 1 rank would, bin by bin."""
    training = settled(max_steps=6, global_batch_size=4, sharding="full")
    crew.run(1, trained, beside(training, "whole"))
    crew.run(4, trained, touched(training, "STOP"))
    assert 0 < last(training).step < 6
    crew.run(2, trained, training)
    assert last(training) == last(beside(training, "whole"))


def test_bug_19_a_save_at_the_end_of_an_epoch_drops_no_epoch(settled: Settled, crew: Crew) -> None:
    """data#1437: resumed exactly between two epochs, all bins of both come, each once."""
    training = settled(max_steps=None, num_train_epochs=3, save_steps=1, global_batch_size=1)
    bins = len(open_training_data(training.data))
    training = replace(training, global_batch_size=bins)
    whole = beside(training, "whole")
    crew.run(1, trained, whole)
    crew.run(1, trained, replace(training, resume=f"{whole.output_dir}/step-000001"))
    assert last(whole).index == 3 * bins
    assert last(training) == last(whole)
    assert [path.name for path in list_published(Path(training.output_dir))] == ["step-000002", "step-000003"]


def test_bug_20_resume_is_a_seek(tmp_path: Path) -> None:
    """transformers#11284: at sample 10 and at sample 10⁹ the next step asks for its own bins, and for no others."""
    asked: list[int] = []
    order = mix_sources({"a": 1_000_003}, 1)

    def counted(index: int) -> SequenceDraw:
        asked.append(index)
        return order(index)

    engine, optimizer = standing()
    for step, index in ((1, 10), (2, 10**9)):
        put(engine, optimizer, step)
        store = checkpoints(tmp_path)
        store.save(engine, optimizer, TrainingProgress(step=step, index=index), wait=True)
        store.close()
        store = checkpoints(tmp_path)
        found = store.resume(engine, optimizer)
        store.close()
        assert found is not None
        BatchPlanner(cursor=counted, counts=lambda _: (9, 5), size=4, rows=1, total=10**10).plan(found)
        assert asked == [index, index + 1, index + 2, index + 3]
        asked.clear()


def test_bug_25_no_rank_gets_the_random_state_of_another(tmp_path: Path) -> None:
    """miles#3187: a checkpoint has none, each step draws from (seed, step, rank); resuming leaves it as it was."""
    save(tmp_path, 1)
    names = SavedCheckpoint.open(tmp_path / "step-000001").marker.tensors
    assert {name.partition("/")[0] for name in names} == {"model", "optimizer"}
    engine, optimizer = standing()
    store = checkpoints(tmp_path)
    before = torch.get_rng_state()
    assert store.resume(engine, optimizer) == progress(1)
    store.close()
    assert torch.equal(before, torch.get_rng_state())
