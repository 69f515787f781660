"""The folder of a run's checkpoints: names, lock, listing and removal."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from secrets import token_hex
from shutil import rmtree

from aboard.diagnoses import TrainerError
from aboard.diagnoses.runs import checkpoints
from aboard.diagnoses.untrusted import Untrusted
from aboard.durable_files import acquire_lock, note_lock_holder, open_without_link, read_lock_holder, sync_folder
from aboard.foreign_files import MOST_MARKER, read_foreign_file
from aboard.lazy_dataclass import dataclass
from aboard.trainer.checkpoint import commit_marker
from aboard.trainer.checkpoint.commit_marker import CommitMarker, MarkerError

# `step-000123`, and `step-000123-2` if the first one exists.
_STEP = re.compile(r"step-(\d{6,})(?:-(\d+))?")
_REMOVED_PREFIX = ".gone-"
# A run that has just ended may take a moment to release the lock.
_PATIENCE = 10.0


@dataclass(frozen=True, kw_only=True)
class CheckpointListing:
    """The serials of the checkpoints with an intact marker, and other entries with the reason why they are skipped."""

    good: Mapping[str, int]
    skipped: Mapping[str, str]
    # The hashes of the intact markers.
    hashes: Mapping[str, str] = field(default_factory=dict)


def list_published(folder: Path) -> list[Path]:
    """The checkpoints that have a marker, in the order of their steps."""
    return [path for path in _list_steps(folder) if (path / commit_marker.NAME).exists()]


def list_unpublished(folder: Path) -> list[Path]:
    """What interrupted saves and removals have left behind."""
    gone = sorted(folder.glob(f"{_REMOVED_PREFIX}*"))
    return gone + [path for path in _list_steps(folder) if not (path / commit_marker.NAME).exists()]


def list_checkpoints(folder: Path, names: Iterable[str] | None = None) -> CheckpointListing:
    """All checkpoints of a folder, or some by name."""
    good: dict[str, int] = {}
    skipped: dict[str, str] = {}
    hashes: dict[str, str] = {}
    for name in [path.name for path in _list_steps(folder)] if names is None else names:
        try:
            text = _read_marker_bytes(folder / name)
            good[name], hashes[name] = commit_marker.parse_serial(text), commit_marker.read_marker_hash(text)
        except MarkerError as error:
            skipped[name] = str(error)
    return CheckpointListing(good=good, skipped=skipped, hashes=hashes)


def read_marker(path: Path) -> CommitMarker:
    return commit_marker.parse_marker(_read_marker_bytes(path))


def is_step_name(name: str) -> bool:
    return _STEP.fullmatch(name) is not None


def choose_step_name(step: int, used_names: set[str]) -> str:
    """A name that no published checkpoint has on any disk."""
    name, again = f"step-{step:06d}", 2
    while name in used_names:
        name, again = f"step-{step:06d}-{again}", again + 1
    return name


def remove_checkpoint(path: Path) -> None:
    """Removes atomically: renames first, durably, then deletes file by file."""
    gone = path
    if not path.name.startswith(_REMOVED_PREFIX):
        gone = path.with_name(f"{_REMOVED_PREFIX}{path.name}-{token_hex(4)}")
        os.rename(path, gone)  # noqa: PTH104 - one call of the kernel, and a test stops at each of them
        sync_folder(path.parent)
    rmtree(gone)


class FolderLock:
    """Admits one run at a time to a folder; the kernel releases the lock when its holder dies."""

    def __init__(self, folder: Path) -> None:
        self._handle = open_without_link(folder / ".lock", os.O_RDWR | os.O_CREAT)
        try:
            self._take(folder)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        os.close(self._handle)

    def _take(self, folder: Path) -> None:
        try:
            is_ours = acquire_lock(self._handle, patience=_PATIENCE)
        except OSError:
            return  # a file system without locks: a second run can't be detected
        if not is_ours:
            node, process = map(Untrusted, read_lock_holder(self._handle))
            seen = f"process {process.visible()} on {node.visible()} is already writing checkpoints to {folder}"
            raise TrainerError(checkpoints.FOLDER_BUSY, seen, process=process, node=node)
        note_lock_holder(self._handle)


def _read_marker_bytes(path: Path) -> bytes:
    try:
        return read_foreign_file(path / commit_marker.NAME, MOST_MARKER)
    except (FileNotFoundError, NotADirectoryError) as error:
        interrupted = "it was never completed: its save was interrupted"
        raise MarkerError(interrupted if path.is_dir() else "there is no such directory") from error
    except OSError as error:
        raise MarkerError(f"its {commit_marker.NAME} can't be read ({error.strerror})") from error


def _list_steps(folder: Path) -> list[Path]:
    matches = [(match, path) for path in folder.glob("step-*") if (match := _STEP.fullmatch(path.name))]
    matches.sort(key=lambda each: (int(each[0][1]), int(each[0][2] or 1)))
    return [path for _, path in matches if path.is_dir()]
