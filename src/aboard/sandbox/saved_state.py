"""The one directory that a sandbox has on the machine, and the lock that guards it."""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, field
from pathlib import Path

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass
from aboard.sandbox.layout import SandboxLayout, validate_name
from aboard.sandbox.namespaces.process_identity import ProcessIdentity, read_boot_id

BASE = Path("/run/aboard-sandbox")
_KILL_TIMEOUT = 30.0


@dataclass(frozen=True, kw_only=True)
class SandboxState:
    """What is written down about a sandbox: enough to find it, use it and end it."""

    layout: SandboxLayout
    boot: str
    outer_init: ProcessIdentity
    crew_id: int
    ready: bool
    hosts: dict[str, ProcessIdentity] = field(default_factory=dict)

    def alive(self) -> bool:
        """Its hull runs: a number of another boot, or one that was given out again, isn't it."""
        return self.boot == read_boot_id() and self.outer_init.alive()


def get_directory(name: str) -> Path:
    """Where the sandbox of this name keeps its state; `disks` in it is a mount point of the hull."""
    return BASE / validate_name(name)


def read_state(name: str) -> SandboxState | None:
    """What was last written; None when there is nothing, or nothing that can be read."""
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
    """All of it or nothing of it."""
    raw = {
        "layout": {key: getattr(state.layout, key) for key in ("name", "nodes", "slots", "fabric", "slurm")},
        "boot": state.boot,
        "hull": asdict(state.outer_init),
        "crew_id": state.crew_id,
        "ready": state.ready,
        "hosts": {host: asdict(process) for host, process in state.hosts.items()},
    }
    target = get_directory(state.layout.name) / "state.json"
    draft = target.with_suffix(".new")
    draft.write_text(json.dumps(raw))
    draft.replace(target)


def list_sandboxes() -> list[str]:
    """Every sandbox that has a directory, up or wrecked."""
    return sorted(entry.name for entry in BASE.iterdir() if entry.is_dir()) if BASE.is_dir() else []


@contextmanager
def lock_sandbox(name: str, verb: str) -> Iterator[None]:
    """One `up`, `down`, `break` or `heal` at a time per sandbox; the kernel frees it when its holder dies."""
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
                    f"another aboard is building or changing sandbox {name!r} right now",
                    "named",
                    verb=verb,
                    name=name,
                ) from None
            # A `down` between open and flock has removed this very directory: take the new one.
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
    """Under the lock of a sandbox: the user ids of all others, to which nobody else adds meanwhile.

    The kernel counts the processes of a user (RLIMIT_NPROC) over the whole machine, so each sandbox has its own.
    """
    handle = os.open(BASE, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        others = [read_state(name) for name in list_sandboxes()]
        yield {other.crew_id for other in others if other is not None and other.alive()}
    finally:
        os.close(handle)


def clear_sandbox(name: str) -> None:
    """Under the lock: end the hull, if it is this boot's, and empty the directory; works on any wreck."""
    state = read_state(name)
    if state is not None and state.alive() and not state.outer_init.kill(timeout=_KILL_TIMEOUT):
        raise SandboxError(
            sandbox.STUCK,
            f"process {state.outer_init.pid} of sandbox {name!r} still runs {_KILL_TIMEOUT:.0f} s after SIGKILL",
            "named",
            name=name,
        )
    for entry in get_directory(name).iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def remove_sandbox(name: str) -> None:
    """As `clear`, and the directory goes too."""
    clear_sandbox(name)
    _drop_if_empty(name)


def _drop_if_empty(name: str) -> None:
    # Not empty: this sandbox is up, or another lives beside it.
    with contextlib.suppress(OSError):
        get_directory(name).rmdir()
    with contextlib.suppress(OSError):
        BASE.rmdir()


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        # The last sandbox's `down` removed the base between two lines: the caller comes round again.
        return


def _is_same_directory(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
