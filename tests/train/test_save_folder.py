"""The folder of checkpoints: nothing published is touched, leftovers go, and the newest good one always stays."""

from pathlib import Path

import pytest
import torch
from saving import checkpoints, progress, put, resumed, save, standing, wrong

from aboard.diagnoses import AboardError
from aboard.trainer.checkpoint import checkpoint_folder
from aboard.trainer.checkpoint.checkpoint_failures import pack_failure, raise_first_failure
from aboard.trainer.checkpoint.checkpoint_writer import find_needed_for_copies, find_superfluous
from aboard.trainer.checkpoint.saved_checkpoint import SavedCheckpoint


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_old_ones_go(tmp_path: Path) -> None:
    """`save_total_limit: 2` keeps two, the newest."""
    notes = save(tmp_path, 1, 2, 3, 4, keep=2)
    assert names(tmp_path) == ["step-000003", "step-000004"]
    assert "removed step-000001: save_total_limit is 2" in notes


def test_the_newest_good_one_stays_whatever_the_limit(tmp_path: Path) -> None:
    """By serial and not by step: a run that went back to step 5 keeps what it saved since."""
    good = {"step-000009": 1, "step-000005": 2, "step-000006": 3}
    assert find_superfluous(good, keep=1, newest="step-000006", broken=()) == ["step-000009", "step-000005"]
    assert find_superfluous(good, keep=2, newest="step-000006", broken=()) == ["step-000009"]
    assert find_superfluous(good, keep=2, newest="step-000006", broken={"step-000005"}) == []
    assert find_superfluous(good, keep=None, newest="step-000006", broken=()) == []
    # The best one is kept beyond the limit, and counts towards it.
    for keep in (1, 2):
        assert find_superfluous(good, keep=keep, newest="step-000006", broken=(), best="step-000009") == ["step-000005"]
    assert find_superfluous(good, keep=1, newest="step-000006", broken=(), best="step-000006") == [
        "step-000009",
        "step-000005",
    ]


def test_what_survives_the_loss_of_a_node_is_needed() -> None:
    """The newest that is copied everywhere, and those after it that are being copied; not those that wait."""
    good = {f"step-{step:06d}": step for step in range(1, 7)}
    newest = "step-000006"
    going = {"step-000003": True, "step-000004": False, "step-000005": True, newest: False}
    assert find_needed_for_copies(good, newest, going, ()) == {"step-000002", "step-000003", "step-000005"}
    assert find_needed_for_copies(good, newest, going, {"step-000002"}) == {
        *("step-000001", "step-000003", "step-000005")
    }
    assert find_needed_for_copies(good, newest, {newest: False}, ()) == {"step-000005"}
    needed = {"step-000002", "step-000005"}
    kept = good.keys() - {*find_superfluous(good, keep=1, newest=newest, broken=(), needed=needed)}
    assert kept == {*needed, newest}


def test_leftovers_of_saves_and_removals_go(tmp_path: Path) -> None:
    """What a killed process left is removed by the next save, and nothing else is."""
    save(tmp_path, 1)
    (tmp_path / "step-000002").mkdir()
    (tmp_path / "step-000002" / "rank-00000-000.safetensors").touch()
    (tmp_path / ".gone-step-000000-1234").mkdir()
    (tmp_path / ".seen-1234").touch()
    (tmp_path / "metrics.jsonl").touch()
    notes = save(tmp_path, 2)
    assert names(tmp_path) == ["metrics.jsonl", "step-000001", "step-000002"]
    assert "removed step-000002: it was never completed" in notes
    assert resumed(tmp_path)[0] == 2


def test_a_folder_that_another_run_writes_into_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs in one folder would take each other's saves for leftovers."""
    monkeypatch.setattr(checkpoint_folder, "_PATIENCE", 0.1)
    first = checkpoints(tmp_path)
    with pytest.raises(AboardError) as caught:
        checkpoints(tmp_path)
    first.close()
    assert caught.value.code == "checkpoint-folder-busy"
    checkpoints(tmp_path).close()


def test_a_save_that_fails_is_raised_at_the_next_call(tmp_path: Path) -> None:
    """An asynchronous failure isn't lost: the next poll raises it, once, with the path."""
    engine, optimizer = standing()
    put(engine, optimizer, 1)
    folder = tmp_path / "out"
    store = checkpoints(folder)
    store.save(engine, optimizer, progress(1), wait=True)
    folder.rename(tmp_path / "moved")
    folder.write_text("no folder")
    store.save(engine, optimizer, progress(2))
    with pytest.raises(AboardError) as caught:
        store.close()
    assert caught.value.code == "checkpoint-write"
    assert str(folder) in caught.value.seen
    assert resumed(tmp_path / "moved")[0] == 1


@pytest.mark.parametrize(
    ("number", "code", "fix"),
    [(28, "checkpoint-disk-full", "df -h /out"), (13, "checkpoint-not-writable", "ls -ld /out")],
)
def test_what_the_disk_said_becomes_a_fix(number: int, code: str, fix: str) -> None:
    """A full disk and a closed one have names, and the node to type the fix on."""
    told = pack_failure(OSError(number, "said", "/out/a"), rank=3, node="n2", folder=Path("/out"))
    assert told["code"] == code
    assert told["seen"] == "rank 3 on n2 can't write /out/a: said"
    # To the other ranks it goes without the text of a fix, which each fills in by itself.
    assert "fix" not in told
    with pytest.raises(AboardError) as caught:
        raise_first_failure([{}, {"failed": told}])
    assert caught.value.fix.startswith(fix)
    assert "# on n2" in caught.value.fix


def test_a_checkpoint_can_be_read_without_its_training(tmp_path: Path) -> None:
    """What an export needs: names, ties, whole tensors, and whether all files are sound."""
    save(tmp_path, 3)
    saved = SavedCheckpoint.open(tmp_path / "step-000003")
    assert saved.verify() == []
    assert saved.marker.ties == {"head.weight": "embedding.weight"}
    assert "head.weight" not in saved.model()
    engine, optimizer = standing()
    put(engine, optimizer, 3)
    for name, tensor in engine.module.named_parameters():
        assert saved.tensor(f"model/{name}").equal(tensor)


def test_buffers_are_used_again(tmp_path: Path) -> None:
    """The host memory of the first save is that of all others."""
    engine, optimizer = standing()
    store = checkpoints(tmp_path)
    places = []
    for step in (1, 2):
        put(engine, optimizer, step)
        store.save(engine, optimizer, progress(step), wait=True)
        places.append([buffer.data_ptr() for buffer in store._stage._buffers])
    store.close()
    assert places[0] == places[1]


def test_the_next_step_waits_for_the_copy_and_for_nothing_else(tmp_path: Path) -> None:
    """A step right after a save changes nothing of it, and the wait is counted; forward and backward don't wait."""
    engine, optimizer = standing(width=2048, layers=4)
    put(engine, optimizer, 1)
    store = checkpoints(tmp_path)
    for parameter in engine.module.parameters():
        parameter.grad = torch.ones_like(parameter)
    call = store.save(engine, optimizer, progress(1))
    optimizer.step()
    assert store.stalled > call
    assert wrong(engine, optimizer, 1) != []
    store.close()
    assert resumed(tmp_path, shape=(2048, 4))[0] == 1
