"""Broken checkpoints: never continued from, always named, and the one before is taken."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from saving import checkpoints, progress, put, resumed, save, standing

from aboard.diagnoses import AboardError
from aboard.trainer.checkpoint import commit_marker
from aboard.trainer.checkpoint.saved_checkpoint import SavedCheckpoint

FILE = "rank-00000-000.safetensors"
MARKER = "manifest.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Steps 1 and 2, published."""
    save(tmp_path, 1, 2)
    return tmp_path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    """One bit in its middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("name", [FILE, MARKER])
@pytest.mark.parametrize("harm", [cut, emptied, flipped, gone])
def test_a_broken_checkpoint_is_skipped(folder: Path, name: str, harm: Callable[[Path], None]) -> None:
    """Cut off, emptied, with one bit flipped, or gone: the newest that verifies is taken, and the note says why."""
    harm(folder / "step-000002" / name)
    step, notes = resumed(folder)
    assert step == 1
    assert notes[0].startswith("skipped step-000002: ")


def test_the_note_names_the_file_and_the_harm(folder: Path) -> None:
    """A user can tell a full disk from a bad one."""
    flipped(folder / "step-000002" / FILE)
    _, notes = resumed(folder)
    assert notes[0].startswith(f"skipped step-000002: {FILE} isn't what was written (its sha256 differs) (on ")
    assert notes[1] == f"resumed from {folder / 'step-000001'}, step 1"


@pytest.mark.parametrize("at", [0, 40, 300])
def test_every_flipped_bit_of_a_marker_is_seen(folder: Path, at: int) -> None:
    """Also one that leaves it valid JSON: a cursor that is a digit off would be silent."""
    path = folder / "step-000002" / MARKER
    text = path.read_bytes()
    for start in range(at, len(text), 509):
        path.write_bytes(text[:start] + bytes([text[start] ^ 1]) + text[start + 1 :])
        with pytest.raises(AboardError) as caught:
            SavedCheckpoint.open(folder / "step-000002")
        assert caught.value.code == "checkpoint-unusable"


def test_where_none_verifies_it_does_not_begin_anew(folder: Path) -> None:
    """Weeks of training aren't thrown away in silence: it is an error, with all reasons."""
    flipped(folder / "step-000001" / FILE)
    gone(folder / "step-000002" / FILE)
    with pytest.raises(AboardError) as caught:
        resumed(folder)
    assert caught.value.code == "checkpoint-none-sound"
    assert "skipped step-000001" in caught.value.seen
    assert f"skipped step-000002: {FILE} missing" in caught.value.seen


def test_what_was_never_published_is_not_there(tmp_path: Path) -> None:
    """A folder with nothing but a save that was cut off is a beginning."""
    save(tmp_path, 1)
    gone(tmp_path / "step-000001" / MARKER)
    assert resumed(tmp_path) == (0, ["skipped step-000001: it was never completed: its save was interrupted"])


def test_one_that_is_asked_for_by_name_is_that_one_or_an_error(folder: Path) -> None:
    """`resume: PATH` takes no other."""
    assert resumed(folder, resume=str(folder / "step-000001"))[0] == 1
    cut(folder / "step-000001" / FILE)
    with pytest.raises(AboardError) as caught:
        resumed(folder, resume=str(folder / "step-000001"))
    assert caught.value.code == "checkpoint-none-sound"
    with pytest.raises(AboardError):
        resumed(folder, resume=str(folder / "step-000009"))


def test_none_begins_anew_and_touches_nothing(folder: Path) -> None:
    """`resume: none` beside old checkpoints: its own get other names, and are the newest from then on."""
    assert resumed(folder, resume="none") == (0, [])
    save(folder, 1)
    assert sorted(path.name for path in folder.glob("step-*")) == ["step-000001", "step-000001-2", "step-000002"]
    assert resumed(folder)[1][-1] == f"resumed from {folder / 'step-000001-2'}, step 1"


def test_a_broken_one_is_not_overwritten_nor_counted(folder: Path) -> None:
    """Step 2 is saved again beside its broken self, which neither goes nor pushes a good one out."""
    flipped(folder / "step-000002" / FILE)
    engine, optimizer = standing()
    store = checkpoints(folder, keep=2)
    assert store.resume(engine, optimizer) == progress(1)
    put(engine, optimizer, 2)
    store.save(engine, optimizer, progress(2), wait=True)
    store.close()
    assert sorted(path.name for path in folder.glob("step-*")) == ["step-000001", "step-000002", "step-000002-2"]
    assert resumed(folder)[0] == 2


def test_a_marker_names_no_files_elsewhere(folder: Path) -> None:
    """A checkpoint from a stranger reads nothing outside of its folder."""
    text = (folder / "step-000002" / MARKER).read_text()
    _, _, body = text.partition("\n")
    with pytest.raises(commit_marker.MarkerError, match="truncated or damaged"):
        commit_marker.parse_marker(text.replace(FILE, "../../etc/passwd").encode())
    body = body.replace(FILE, "../../etc/passwd")
    with pytest.raises(commit_marker.MarkerError, match="not a plain file name"):
        commit_marker.parse_marker(f'{{"sha256":"{sha256(body.encode()).hexdigest()}",\n{body}'.encode())
