"""Where a run keeps its things: the one class that knows the names of all files in a run directory."""

import fcntl
import os
from contextlib import suppress
from enum import Enum
from pathlib import Path
from time import monotonic, sleep
from typing import Self

from aboard.diagnoses import AboardError
from aboard.diagnoses.usage import run_records
from aboard.lazy_dataclass import dataclass

PRIVATE = 0o700
PRIVATE_FILE = 0o600
# How the names of looks begin; they sort in their order.
SNAPSHOT_PREFIX = "look-"
# A look at whether the run lives takes the lock for some microseconds: longer than this, somebody else has it.
_CLAIM_SECONDS = 0.5


class RunState(Enum):
    """Of a run's conductor: it runs; it has ended the run and tidied up; it died and left the run to the leases."""

    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"


@dataclass(frozen=True)
class RunDirectory:
    """One run's directory, 0700."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def samples(self) -> Path:
        return self.path / "samples.jsonl"

    @property
    def findings(self) -> Path:
        return self.path / "findings.json"

    @property
    def stacks(self) -> Path:
        """Where each rank was in its Python code when the first one failed."""
        return self.path / "stacks.json"

    @property
    def check(self) -> Path:
        return self.path / "check.json"

    def look(self, number: int) -> Path:
        """What the nodes answered when they were asked, and was judged."""
        return self.path / f"{SNAPSHOT_PREFIX}{number:04}.json"

    @property
    def socket(self) -> Path:
        return self.path / "conductor.sock"

    @property
    def pid(self) -> Path:
        return self.path / "conductor.pid"

    @property
    def conductor_log(self) -> Path:
        return self.path / "conductor.log"

    @property
    def logs(self) -> Path:
        """One file per rank and segment, each with its index; `nodes` lists the names that indexes number."""
        return self.path / "logs"

    @property
    def _birth(self) -> Path:
        return self.path / "began"

    @property
    def began(self) -> float:
        """When the run was made; ids of one minute don't sort by time. 0 when that can't be read."""
        with suppress(OSError):
            return self._birth.stat().st_mtime
        return 0.0

    def make(self) -> None:
        """Makes the directory; raises FileExistsError if the run is there already."""
        self.path.mkdir(mode=PRIVATE)
        self.logs.mkdir(mode=PRIVATE)
        self._birth.touch(mode=PRIVATE_FILE)

    def claim(self) -> "ConductorLock":
        """Says that this process conducts the run, for as long as it lives."""
        return ConductorLock.take(self.pid)

    @property
    def state(self) -> RunState:
        try:
            fd = os.open(self.pid, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return RunState.ENDED
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return RunState.RUNNING
        except OSError:
            return RunState.LOST
        finally:
            os.close(fd)
        return RunState.LOST

    @property
    def live(self) -> bool:
        return self.state is RunState.RUNNING


class ConductorLock:
    """The lock on conductor.pid: the kernel frees it when its holder dies, and a fork inherits it."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    @classmethod
    def take(cls, path: Path) -> Self:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        deadline = monotonic() + _CLAIM_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if monotonic() > deadline:
                    os.close(fd)
                    raise _build_taken_error(path) from None
                sleep(0.01)
        claim = cls(path, fd)
        claim.sign()
        return claim

    def sign(self) -> None:
        """Writes this process's number, which is another one after a fork; a full disk leaves the file empty."""
        with suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """The run has ended in order."""
        with suppress(OSError):
            self._path.unlink()
        os.close(self._fd)


def _build_taken_error(path: Path) -> AboardError:
    run = path.parent.name
    return AboardError(run_records.RUN_TAKEN, f"the run {run} already has a conductor", run=run)
