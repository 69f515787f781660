"""The state of a sandbox in its one directory on the machine, and the lock for it."""

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, field
from pathlib import Path
from time import monotonic, sleep

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.durable_files import write_atomically
from aboard.lazy_dataclass import dataclass
from aboard.sandbox.layout import SandboxLayout, validate_name
from aboard.sandbox.namespaces.process_identity import ProcessIdentity, read_boot_id

BASE = Path("/run/aboard-sandbox")
_KILL_TIMEOUT = 30.0
_GROUP_TIMEOUT = 5.0
_CONTROL_GROUPS = "/sys/fs/cgroup"


@dataclass(frozen=True, kw_only=True)
class SandboxState:
    """The saved state of a sandbox: enough to find, use and remove it."""

    layout: SandboxLayout
    boot: str
    outer_init: ProcessIdentity
    crew_id: int
    ready: bool
    hosts: dict[str, ProcessIdentity] = field(default_factory=dict)

    def alive(self) -> bool:
        """Whether its outer init runs; a pid of another boot, or a reused one, does not count."""
        return self.boot == read_boot_id() and self.outer_init.alive()


def get_directory(name: str) -> Path:
    """The directory of this sandbox's state; its `disks` is a mount point of the outer namespace."""
    return BASE / validate_name(name)


def read_state(name: str) -> SandboxState | None:
    """The saved state; None if it is missing or unreadable."""
    try:
        raw = json.loads((get_directory(name) / "state.json").read_text())
        return SandboxState(
            layout=SandboxLayout(**raw["layout"]),
            boot=raw["boot"],
            outer_init=ProcessIdentity(**raw["hull"]),
            crew_id=raw["crew_id"],
            ready=raw["ready"],
            hosts={host: ProcessIdentity(**process) for host, process in raw["hosts"].items()},
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def write_state(state: SandboxState) -> None:
    """Writes the state atomically."""
    raw = asdict(state)
    raw["hull"] = raw.pop("outer_init")
    target = get_directory(state.layout.name) / "state.json"
    write_atomically(target, json.dumps(raw), sync=False)


def list_sandboxes() -> list[str]:
    """All sandboxes that have a directory, running or crashed."""
    return sorted(entry.name for entry in BASE.iterdir() if entry.is_dir()) if BASE.is_dir() else []


@contextmanager
def lock_sandbox(name: str, verb: str) -> Iterator[None]:
    """Allows one `up`, `down`, `break` or `heal` at a time per sandbox; the kernel releases it when its holder dies."""
    while True:
        BASE.mkdir(mode=0o700, exist_ok=True)
        _make_directory(get_directory(name))
        try:
            handle = os.open(get_directory(name), os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SandboxError(
                    sandbox.BUSY,
                    f"another aboard process is building or changing sandbox {name!r} right now",
                    "named",
                    verb=verb,
                    name=name,
                ) from None
            # A `down` between open and flock has removed this directory: use the new one.
            if _is_same_directory(handle, get_directory(name)):
                try:
                    yield
                finally:
                    _drop_if_empty(name)
                return
        finally:
            os.close(handle)


@contextmanager
def lock_user_ids() -> Iterator[set[int]]:
    """Under the lock of a sandbox: the user ids of all others, locked against additions.

    The kernel counts the processes of a user (RLIMIT_NPROC) over the whole machine, so each sandbox has its own id.
    """
    handle = os.open(BASE, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        others = [read_state(name) for name in list_sandboxes()]
        yield {other.crew_id for other in others if other is not None and other.alive()}
    finally:
        os.close(handle)


def clear_sandbox(name: str) -> None:
    """Under the lock: kills the outer init, if it is of this boot, and empties the directory, whatever its state."""
    state = read_state(name)
    if state is not None and state.alive() and not state.outer_init.kill(timeout=_KILL_TIMEOUT):
        raise SandboxError(
            sandbox.STUCK,
            f"process {state.outer_init.pid} of sandbox {name!r} is still running {_KILL_TIMEOUT:.0f} s after SIGKILL",
            "named",
            name=name,
        )
    _remove_control_groups(name)
    for entry in get_directory(name).iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _remove_control_groups(name: str) -> None:
    """Removes what faults have left in the machine's tree of control groups, once the processes in them are gone."""
    mine = re.compile(rf"aboard-{re.escape(name)}-(head|n[0-9]+)")
    deadline = monotonic() + _GROUP_TIMEOUT
    for folder, names, _files in os.walk(_CONTROL_GROUPS):
        for group in filter(mine.fullmatch, names):
            # Busy until the kernel has buried the last process.
            while not _remove_group(Path(folder, group)) and monotonic() < deadline:
                sleep(0.01)


def _remove_group(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def remove_sandbox(name: str) -> None:
    """Like `clear_sandbox`, and removes the directory too."""
    clear_sandbox(name)
    _drop_if_empty(name)


def _drop_if_empty(name: str) -> None:
    # Not empty: this sandbox is up, or another one exists.
    with contextlib.suppress(OSError):
        get_directory(name).rmdir()
    with contextlib.suppress(OSError):
        BASE.rmdir()


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        # The last sandbox's `down` has just removed the base directory: the caller tries again.
        return


def _is_same_directory(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
