"""One save in the background, as each rank runs it: open, write, publish; all ranks agree on each step."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses import AboardError, TrainerError
from aboard.durable_files import FileEntry, HashedFile, sync_folder, write_atomically
from aboard.lazy_dataclass import dataclass
from aboard.trainer.checkpoint import commit_marker
from aboard.trainer.checkpoint.best_evaluation import find_best_checkpoint, get_wanted_best
from aboard.trainer.checkpoint.checkpoint_copies import list_uncopied, write_copy_record
from aboard.trainer.checkpoint.checkpoint_folder import (
    choose_step_name,
    list_checkpoints,
    list_published,
    list_unpublished,
    remove_checkpoint,
)
from aboard.trainer.checkpoint.commit_marker import CheckpointFile, CommitMarker, TensorSpec
from aboard.trainer.checkpoint.staging_buffers import StagedFile
from aboard.trainer.diagnoses import checkpoint
from aboard.trainer.distributed.rank_group import PROBE_PREFIX, CheckpointRanks
from aboard.trainer.metrics.head_beacon import send_saved

# One hashes while the other waits for the disk.
_WRITERS = 2
# Real ones rise by one; a crafted one must not leave us without a higher one that can be written.
_MOST_SERIAL, _MOST_GAP = 10**12, 10**9


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckpointState:
    """The state at one step; `copy` returns this rank's part, or raises the error to report to the other ranks."""

    step: int
    # The fields of the marker that are equal on all ranks.
    about: dict[str, Any]
    tensors: dict[str, TensorSpec]
    copy: Callable[[], list[StagedFile]]


class CheckpointWriter:
    """Runs on every rank; the leader of each disk creates folders, writes markers and removes old checkpoints."""

    def __init__(self, group: CheckpointRanks, *, keep: int | None, copies: bool = False) -> None:
        self._group = group
        self._folder = group.folder
        self._keep = keep
        self._copies = copies
        # Checkpoints that are not copied to all disks that want them, and those of them that are on the way.
        self._uncopied: dict[str, bool] = {}
        # Left by earlier processes, all dead: this one holds the lock.
        self._leftovers = list_unpublished(group.folder) if group.leads else []
        # Names that didn't verify when this run started.
        self.broken: set[str] = set()
        # The step of the newest complete one; training reads it from another thread.
        self.published: int | None = None
        # Its serial; each further one of this run is higher.
        self.serial = 0
        # Its directory, and the seconds that the save took; None for one that was resumed from.
        self.newest: tuple[Path, float] | None = None

    def continue_from(self, marker: CommitMarker) -> None:
        """What is saved from now on is newer than this one."""
        self.published, self.serial = marker.step, min(marker.serial, 100 * _MOST_SERIAL)

    def save(self, state: CheckpointState) -> list[str]:
        """Returns notes; an error is the same on all ranks, and leaves published checkpoints intact."""
        began = monotonic()
        drafts: list[StagedFile] = []
        name, serial, notes = self._open(state, drafts)
        path = self._folder / name
        try:
            files = self._write(path, drafts)
        except AboardError:
            self._drop(path)
            raise
        about = {"serial": serial, "step": state.step, **state.about}
        lines = [line for line, _ in files]
        markers = self._group.run_collectively(lambda: {"hash": self._publish(path, about, state.tensors, lines)})
        self.published, self.serial, self.newest = state.step, serial, (path, monotonic() - began)
        marker = markers[0]["hash"] if self._group.rank == 0 else ""
        send_saved(name, serial, [draft.name for draft in drafts], marker=marker)
        size_text = format_size(sum(count for _, count in files))
        notes.append(f"saved step {state.step} to {path} ({size_text}, {monotonic() - began:.1f} s)")
        return notes + self._retain(name, state.about)

    def _open(self, state: CheckpointState, drafts: list[StagedFile]) -> tuple[str, int, list[str]]:
        """Copies first, since training may wait for it; then creates a folder on each disk, with a name free on all."""
        notes: list[str] = []

        def copy_and_list() -> dict[str, Any]:
            drafts.extend(state.copy())
            taken = [path.name for path in list_published(self._folder)] if self._group.leads else []
            good = list_checkpoints(self._folder).good.values() if self._group.leads else ()
            serial = find_highest_serial(good, least=self.serial)
            uncopied = list_uncopied(self._folder, taken)
            return {"step": state.step, "taken": taken, "serial": serial, "uncopied": uncopied}

        reports = self._group.run_collectively(copy_and_list)
        for rank, each in enumerate(reports):
            if each["step"] != state.step:
                ours = f"rank {self._group.rank} is saving step {state.step}"
                raise TrainerError(checkpoint.OUT_OF_STEP, f"rank {rank} is saving step {each['step']} while {ours}")
        states = [item for each in reports for item in each["uncopied"].items()]
        self._uncopied = {name: any(going for each, going in states if each == name) for name, _ in states}
        name = choose_step_name(state.step, {name for each in reports for name in each["taken"]})

        def make() -> None:
            if self._group.leads:
                notes.extend(self._clear())
                if (self._folder / name).exists():
                    remove_checkpoint(self._folder / name)
                (self._folder / name).mkdir()
                sync_folder(self._folder)

        self._group.run_collectively(make)
        return name, 1 + find_highest_serial((each["serial"] for each in reports), least=self.serial), notes

    def _write(self, path: Path, drafts: Sequence[StagedFile]) -> list[tuple[str, int]]:
        """Writes this rank's files; returns those of all ranks as lines of the marker, with their sizes."""
        group = self._group
        where: dict[str, Any] = {"rank": group.rank, "node": group.node, "disk": group.disks.leaders[group.rank]}

        def write() -> dict[str, Any]:
            sealed = _write_files(path, drafts)
            parts = [
                CheckpointFile(name=one.name, **where, bytes=one.bytes, sha256=one.sha256, slices=draft.slices)
                for one, draft in zip(sealed, drafts, strict=True)
            ]
            return {"files": [(commit_marker.format_file_line(part), part.bytes) for part in parts]}

        return [(line, size) for report in group.run_collectively(write) for line, size in report["files"]]

    def _publish(self, path: Path, about: dict[str, Any], tensors: dict[str, TensorSpec], lines: Sequence[str]) -> str:
        """Returns the hash of the marker, on the leader of a disk."""
        if self._group.leads:
            if self._copies:
                self._plan_copies(path, about["serial"], lines)
            # The checkpoint doesn't exist before this, and is complete after it.
            marker = commit_marker.format_marker(about, tensors, lines)
            write_atomically(path / commit_marker.NAME, marker, sync=True)
            return commit_marker.read_marker_hash(marker)
        return ""

    def _plan_copies(self, path: Path, serial: int, lines: Sequence[str]) -> None:
        """Leaves on this disk what its copier is to fetch from another one."""
        write_copy_record(path, serial, self._group.rank, [commit_marker.parse_file_line(line) for line in lines])

    def _retain(self, newest: str, about: Mapping[str, Any]) -> list[str]:
        """Removes old checkpoints; a failed removal is reported and doesn't stop the run."""
        if not self._group.leads:
            return []
        good = list_checkpoints(self._folder).good
        wanted = get_wanted_best(about["training"], about["state"])
        best = None if wanted is None else find_best_checkpoint(wanted, good)
        needed = find_needed_for_copies(good, newest, self._uncopied, self.broken) if self._copies else set()
        old = find_superfluous(good, keep=self._keep, newest=newest, best=best, broken=self.broken, needed=needed)
        return [_remove_and_describe(self._folder / name, f"save_total_limit is {self._keep}") for name in old]

    def _clear(self) -> list[str]:
        leftovers, self._leftovers = self._leftovers, []
        for mark in self._folder.glob(f"{PROBE_PREFIX}*"):
            mark.unlink(missing_ok=True)
        # Markers may have appeared since: at resume, a node that lacks one gets it from the others.
        return [
            _remove_and_describe(path, "it was never completed")
            for path in leftovers
            if not (path / commit_marker.NAME).exists()
        ]

    def _drop(self, path: Path) -> None:
        """A failed save frees its space: it may have filled the disk."""
        if self._group.leads:
            with suppress(OSError):
                remove_checkpoint(path)


def _remove_and_describe(path: Path, why: str) -> str:
    try:
        remove_checkpoint(path)
    except OSError as error:
        return f"could not remove {path.name} ({error.strerror}: {error.filename}); {why}"
    return f"removed {path.name}: {why}"


def find_highest_serial(serials: Iterable[int], *, least: int) -> int:
    """The highest of these, without those that are far above all others: nobody has saved so often."""
    highest = least
    for each in sorted(serials):
        if each <= highest + _MOST_GAP or (not highest and each < _MOST_SERIAL):
            highest = max(highest, each)
    return highest


def find_needed_for_copies(
    good: Mapping[str, int], newest: str, uncopied: Mapping[str, bool], broken: Collection[str]
) -> set[str]:
    """The newest checkpoint that survives the loss of a node, and newer ones that are being copied."""
    older = good.keys() - {newest} - {*broken}
    copied = max(older - uncopied.keys(), key=lambda name: good[name], default=None)
    least = -1 if copied is None else good[copied]
    return {name for name in older if name == copied or (uncopied.get(name) and good[name] > least)}


def find_superfluous(
    good: Mapping[str, int],
    *,
    keep: int | None,
    newest: str,
    broken: Collection[str],
    best: str | None = None,
    needed: Collection[str] = (),
) -> list[str]:
    """The oldest by serial; never `newest`, which was just written, nor the best, nor a broken one, nor a needed one.

    Broken ones don't count towards `keep`: they would displace good ones.
    """
    if keep is None:
        return []
    fixed = {newest, best, *needed} - {None}
    # Nor one that claims to be newer: nobody of ours wrote it, and it must not displace good ones either.
    ours = {name for name, serial in good.items() if serial < good.get(newest, serial + 1)}
    older = sorted(ours - fixed - {*broken}, key=lambda name: good[name])
    return older[: max(0, len(older) - max(0, keep - len(fixed)))]


def _write_files(folder: Path, drafts: Sequence[StagedFile]) -> list[FileEntry]:
    """Writes all drafts as files and syncs them and their names; the first error ends it."""

    def write(draft: StagedFile) -> FileEntry:
        # Always a new file: an existing one may belong to a checkpoint.
        file = HashedFile(folder / draft.name, in_place=True)
        file.write(draft.header)
        file.write(draft.body)
        return file.publish(sync=True)

    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="checkpoint-write") as pool:
        sealed = list(pool.map(write, drafts))
    sync_folder(folder)
    return sealed
