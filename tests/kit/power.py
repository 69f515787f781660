"""Ends a process at each of its calls to the disk, as a kill or as a power cut, which also loses what wasn't synced.

`boundaries()` says at how many calls of one save a process was ended, and what was wrong afterwards, in a process of
its own, since it forks.
"""

import os
import shutil
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from train_crew import run_alone

from aboard.diagnoses import AboardError

# A kill loses nothing that was written. A power cut loses all that wasn't synced: either the names too, or, as a
# journal of names alone has it, only the content.
How = Literal["kill", "cut", "cut-content"]
CALLS = ("open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir")


@dataclass(kw_only=True)
class Ended:
    """How many ends there were, how many of them left the new checkpoint, and what was wrong after any of them."""

    ends: int = 0
    published: int = 0
    wrong: list[str] = field(default_factory=list)


def boundaries() -> Ended:
    ended: Ended = run_alone(_all, patience=300.0)
    return ended


class Disk:
    """Stands between a process and its disk: counts calls, remembers what isn't synced, and ends it at one of them."""

    def __init__(self, *, at: int | None, how: How, trash: Path) -> None:
        self.calls = 0
        self._kept = 0
        self._at = at
        self._how = how
        self._trash = trash
        self._real = {name: getattr(os, name) for name in CALLS}
        self._paths: dict[int, str] = {}
        self._unsynced: set[str] = set()
        # What was done to names since their folder was last synced: how to undo it, in order.
        self._names: list[tuple[set[str], Callable[[], None]]] = []

    def stand_between(self) -> None:
        for name in CALLS:
            setattr(os, name, getattr(self, f"_{name}"))

    def _next(self) -> None:
        self.calls += 1
        if self.calls == self._at:
            if self._how != "kill":
                self._lose()
            os._exit(0)

    def _lose(self) -> None:
        for path in self._unsynced:
            if Path(path).is_file():
                os.truncate(path, 0)
        if self._how == "cut":
            for _, undo in reversed(self._names):
                with suppress(FileNotFoundError):  # its folder is gone, and that was synced
                    undo()

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        full = self._full(path, dir_fd)
        new = bool(flags & os.O_CREAT) and not Path(full).exists()
        if new:
            self._next()
        handle: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        self._paths[handle] = full
        if new:
            self._did({full}, lambda: self._real["unlink"](full))
        return handle

    def _write(self, handle: int, data: Any) -> int:
        if handle in self._paths:
            self._next()
            self._unsynced.add(self._paths[handle])
        # Half of it first: a file may be cut off anywhere.
        written: int = self._real["write"](handle, data[: max(1, len(data) // 2)])
        return written

    def _fsync(self, handle: int) -> None:
        self._next()
        path = self._paths[handle]
        self._real["fsync"](handle)
        self._unsynced.discard(path)
        self._names = [(folders - {path}, undo) for folders, undo in self._names if folders - {path}]

    def _rename(self, source: Any, target: Any) -> None:
        self._next()
        self._real["rename"](source, target)
        self._did({str(source), str(target)}, lambda: self._real["rename"](target, source))

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if not Path(path).exists():
            self._next()
        self._real["mkdir"](path, mode, dir_fd=dir_fd)
        self._did({str(path)}, lambda: self._real["rename"](path, self._new()))

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._away(self._full(path, dir_fd))

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._away(self._full(path, dir_fd))

    def _away(self, full: str) -> None:
        if not Path(full).exists():
            raise FileNotFoundError(full)
        self._next()
        kept = self._new()
        self._real["rename"](full, kept)
        self._did({full}, lambda: self._real["rename"](kept, full))

    def _did(self, paths: set[str], undo: Callable[[], None]) -> None:
        self._names.append(({str(Path(path).parent) for path in paths}, undo))

    def _new(self) -> str:
        self._kept += 1
        return str(self._trash / str(self._kept))

    def _full(self, path: Any, dir_fd: int | None) -> str:
        return str(path) if dir_fd is None else str(Path(self._paths[dir_fd]) / path)


def _all() -> Ended:
    found = Ended()
    with TemporaryDirectory(prefix="aboard-power-") as place:
        before = Path(place) / "before"
        _prepare(before)
        for how in ("kill", "cut", "cut-content"):
            at = 1
            while _end(Path(place), before, at, how, found):
                at += 1
    return found


def _prepare(folder: Path) -> None:
    """Two checkpoints, which both go with the next save, and what a save that was cut off has left."""
    from saving import checkpoints, progress, put, standing  # noqa: PLC0415 - only in the process of its own

    engine, optimizer = standing(width=16)
    store = checkpoints(folder, keep=2)
    for step in (1, 2):
        put(engine, optimizer, step)
        store.save(engine, optimizer, progress(step), wait=True)
    store.close()
    shutil.copytree(folder / "step-000002", folder / "step-000003")
    (folder / "step-000003" / "manifest.json").unlink()


def _end(place: Path, before: Path, at: int, how: How, found: Ended) -> bool:
    """Whether the save was still under way at that call."""
    from saving import checkpoints, progress, put, standing, wrong  # noqa: PLC0415 - as above

    folder, trash = place / "now", place / "trash"
    shutil.copytree(before, folder)
    trash.mkdir()
    engine, optimizer = standing(width=16)
    put(engine, optimizer, 3)
    process = os.fork()
    if not process:
        disk = Disk(at=at, how=how, trash=trash)
        try:
            disk.stand_between()
            store = checkpoints(folder, keep=1)
            store.save(engine, optimizer, progress(3), wait=True)
            os._exit(3)
        except BaseException:  # noqa: BLE001 - the process ends here, whatever it was
            traceback.print_exc()
        finally:
            os._exit(4)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code == 4:
        found.wrong.append(f"{how} at call {at}: it failed instead")
    store = checkpoints(folder, keep=2)
    resumed = None
    with suppress(AboardError):  # none is sound, and what was skipped is in the notes
        resumed = store.resume(engine, optimizer)
    store.close()
    if resumed is None or resumed.step < (3 if code == 3 else 2):
        found.wrong.append(f"{how} at call {at}: {resumed}, {store.notes}")
    elif wrong(engine, optimizer, resumed.step):
        found.wrong.append(f"{how} at call {at}: step {resumed.step} came back wrong")
    found.ends += code == 0
    found.published += resumed is not None and resumed.step == 3 and code == 0
    shutil.rmtree(folder)
    shutil.rmtree(trash)
    return code == 0
