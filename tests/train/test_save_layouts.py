"""Checkpoints across layouts: saved by some ranks, continued by others, bit by bit."""

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import save_cases
from train_crew import Crew

from aboard.core.plan.training_settings import Sharding, Training

Settled = Callable[..., Training]
# Ranks, nodes, sharding.
Layout = tuple[int, int, Sharding]
ONE: Layout = (1, 1, "none")
LAYOUTS: list[tuple[Layout, Layout]] = [
    (ONE, (2, 1, "full")),
    ((2, 1, "full"), ONE),
    ((2, 1, "full"), (3, 1, "full")),
    ((3, 1, "full"), (2, 1, "none")),
    ((2, 1, "none"), (3, 1, "none")),
    ((4, 2, "hybrid"), (2, 1, "full")),
    ((2, 1, "none"), (4, 2, "hybrid")),
]


@pytest.mark.parametrize(("before", "after"), LAYOUTS, ids=str)
def test_any_layout_continues_any_other(crew: Crew, settled: Settled, before: Layout, after: Layout) -> None:
    """All ranks get back every bit of weights and optimizer, and the same progress, whoever saved it."""
    training = settled(global_batch_size=4, sharding=before[2])
    saved = crew.run(before[0], save_cases.save, training, nodes=before[1])
    came = crew.run(after[0], save_cases.resume, replace(training, sharding=after[2]), nodes=after[1])
    assert all(each == saved[0] for each in saved)
    assert [each.error for each in came] == [None] * after[0]
    assert all(each.hashes == saved[0] for each in came)
    assert [(each.progress.step, each.progress.index, each.progress.ids) for each in came if each.progress] == [
        (2, 8, f"{2:032x}")
    ] * after[0]


def test_the_change_of_layout_is_said(crew: Crew, settled: Settled) -> None:
    """Another number of ranks is no error, and no secret."""
    training = settled(global_batch_size=4, sharding="full")
    crew.run(2, save_cases.save, training, 1)
    (came,) = crew.run(1, save_cases.resume, replace(training, sharding="none", learning_rate=1.0))
    assert "changed since the checkpoint: ranks: 2 (full) → 1 (none)" in came.notes
    assert "changed since the checkpoint: learning_rate: 0.001 → 1.0" in came.notes


def test_ranks_share_the_writing_of_what_they_all_hold(crew: Crew, settled: Settled) -> None:
    """Without sharding each rank writes its part of one copy, not a copy."""
    training = settled(sharding="none")
    crew.run(2, save_cases.save, training, 1)
    sizes = [path.stat().st_size for path in Path(training.output_dir).glob("step-000001/rank-*")]
    assert len(sizes) == 2
    assert max(sizes) < 1.3 * min(sizes)


def test_training_goes_on_while_a_save_is_written(crew: Crew, settled: Settled) -> None:
    """What comes back is the state when the save was asked for, though a step was taken before it was written."""
    training = settled(global_batch_size=4, sharding="full")
    told = crew.run(2, save_cases.save_beside_training, training)
    came = crew.run(2, save_cases.resume, training)
    for (then, later), back in zip(told, came, strict=True):
        assert back.hashes == then
        assert later != then


def test_a_rank_without_room_is_named_by_all(crew: Crew, settled: Settled) -> None:
    """All ranks raise what one of them met, none waits; the last good one stays, and the next save is good again."""
    training = settled(global_batch_size=4, sharding="full")
    told = crew.run(2, save_cases.save_on_a_small_disk, training, 1, 1000)
    assert told[0] == told[1]
    ((code, seen),) = told[0]
    assert code == "checkpoint-write"
    assert "rank 1 on " in seen
    assert "step-000002/rank-00001-000.safetensors: File too large" in seen
    assert sorted(path.name for path in Path(training.output_dir).glob("step-*")) == ["step-000001", "step-000003"]


def test_each_node_has_its_own_disk(crew: Crew, settled: Settled, tmp_path: Path) -> None:
    """Without a shared disk each node keeps its ranks' files and a marker, and the same layout continues from them."""
    training = settled(global_batch_size=4, sharding="full")
    disks = str(tmp_path / "disk{node}")
    saved = crew.run(2, save_cases.save, training, 2, disks, nodes=2)
    for node in (0, 1):
        files = sorted(path.name for path in (tmp_path / f"disk{node}" / "step-000002").iterdir())
        assert files == ["copies.json", "manifest.json", f"rank-{node:05d}-000.safetensors"]
        # Each is to get the part of the other one, as the marker has it.
        record = json.loads((tmp_path / f"disk{node}" / "step-000002" / "copies.json").read_text())
        assert (record["leader"], record["source"], record["state"]) == (node, 1 - node, "waiting")
        part = tmp_path / f"disk{1 - node}" / "step-000002" / f"rank-{1 - node:05d}-000.safetensors"
        assert record["files"] == [[part.name, part.stat().st_size, sha256(part.read_bytes()).hexdigest()]]
    # A node that was cut off between the files and its marker gets it from the other.
    (tmp_path / "disk1" / "step-000002" / "manifest.json").unlink()
    came = crew.run(2, save_cases.resume, training, disks, nodes=2)
    assert [each.hashes for each in came] == saved
    assert (tmp_path / "disk1" / "step-000002" / "manifest.json").exists()


def test_the_newest_copied_checkpoint_stays(crew: Crew, settled: Settled, tmp_path: Path) -> None:
    """Also with `save_total_limit: 1`: the next one may be lost with its node before it is copied."""
    training = settled(global_batch_size=4, sharding="full", save_total_limit=1)
    disks = str(tmp_path / "disk{node}")
    crew.run(2, save_cases.save, training, 1, disks, nodes=2)
    for node in (0, 1):
        record = tmp_path / f"disk{node}" / "step-000001" / "copies.json"
        record.write_text(record.read_text().replace("waiting", "copied"))
    crew.run(2, save_cases.save, training, 2, disks, nodes=2)
    for node in (0, 1):
        left = sorted(path.name for path in (tmp_path / f"disk{node}").glob("step-*"))
        assert left == ["step-000001", "step-000002"]


def test_without_copies_or_with_replicas_no_part_is_to_be_copied(crew: Crew, settled: Settled, tmp_path: Path) -> None:
    """`checkpoint_copies: 0` turns it off, and disks that have everything need only the metrics of rank 0's."""
    for changed in ({"sharding": "full", "checkpoint_copies": 0}, {"sharding": "none"}):
        folder = tmp_path / str(changed["sharding"])
        crew.run(2, save_cases.save, settled(global_batch_size=4, **changed), 1, f"{folder}/disk{{node}}", nodes=2)
        assert len(list(folder.glob("disk*/step-000001/manifest.json"))) == 2
        records = list(folder.glob("disk*/step-000001/copies.json"))
        if changed["sharding"] == "full":
            assert records == []
        else:
            (record,) = map(json.loads, map(Path.read_text, records))
            assert (record["leader"], record["source"], record["files"]) == (1, 0, [])


def test_what_lies_on_another_node_is_asked_for_by_name(crew: Crew, settled: Settled, tmp_path: Path) -> None:
    """A layout that needs files of another disk is told which, of which rank, and how to fetch them."""
    training = settled(global_batch_size=4, sharding="full")
    disks = str(tmp_path / "disk{node}")
    crew.run(2, save_cases.save, training, 2, disks, nodes=2)
    (came,) = crew.run(1, save_cases.resume, replace(training, sharding="none"), disks)
    assert came.error is not None
    code, seen, fix = came.error
    assert code == "checkpoint-elsewhere"
    assert "rank-00001-000.safetensors of rank 1 on " in seen
    assert fix.startswith("rsync -a ")


def test_an_older_one_that_is_whole_here_is_taken(crew: Crew, settled: Settled, tmp_path: Path) -> None:
    """A newer one with files on another disk is skipped, and the note names them."""
    training = settled(global_batch_size=4, sharding="full")
    alone = replace(training, sharding="none")
    (older,) = crew.run(1, save_cases.save, alone, 1, str(tmp_path / "disk0"))
    crew.run(2, save_cases.save, training, 2, str(tmp_path / "disk{node}"), nodes=2)
    (came,) = crew.run(1, save_cases.resume, alone, str(tmp_path / "disk0"))
    assert came.error is None
    assert came.hashes == older
    assert any("skipped step-000002" in note and "rank-00001-000.safetensors" in note for note in came.notes)


def test_without_sharding_each_node_keeps_all_of_it(crew: Crew, settled: Settled, tmp_path: Path) -> None:
    """Each disk of a run without sharding has a whole copy, so that one node alone can go on."""
    training = settled(global_batch_size=4, sharding="none")
    disks = str(tmp_path / "disk{node}")
    saved = crew.run(2, save_cases.save, training, 2, disks, nodes=2)
    (came,) = crew.run(1, save_cases.resume, training, str(tmp_path / "disk1"))
    assert came.hashes == saved[0]
