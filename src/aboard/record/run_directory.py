"""The run directory: the only class that knows the names of its files."""

import fcntl
import os
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Self

from aboard.diagnoses import AboardError
from aboard.diagnoses.usage import run_records
from aboard.durable_files import acquire_lock
from aboard.lazy_dataclass import dataclass

PRIVATE = 0o700
PRIVATE_FILE = 0o600
# The prefix of snapshot files, whose names sort in order.
SNAPSHOT_PREFIX = "look-"
# Checking whether the run is alive holds the lock for microseconds: beyond this, another process owns it.
_CLAIM_SECONDS = 0.5


class RunState(Enum):
    """The state of a run's conductor: running; ended in order; or dead, so that leases end the run."""

    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"


class _File:
    """The path of a file in the run directory."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: "RunDirectory", owner: object) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunDirectory:
    """The directory of one run, mode 0700."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    plan = _File("plan.json")
    events = _File("events.jsonl")
    samples = _File("samples.jsonl")
    # The lines of the trainer's own metrics.jsonl.
    metrics = _File("metrics.jsonl")
    # How late each rank was to collectives.
    lateness = _File("lateness.jsonl")
    findings = _File("findings.json")
    # What was to be told elsewhere.
    messages = _File("messages.jsonl")
    # The Python stacks of all ranks when the first one failed.
    stacks = _File("stacks.json")
    socket = _File("conductor.sock")
    pid = _File("conductor.pid")
    conductor_log = _File("conductor.log")
    # What the conductor decided, and before that: engine/records/decision_log.py.
    decisions, earlier_decisions = _File("decisions.log"), _File("decisions-earlier.log")
    # The Slurm job of a run that has one, and the script of a run that was submitted from a login node.
    slurm_job = _File("slurm.json")
    batch_script = _File("job.sh")
    # One file per rank and segment, each with its index; `nodes` lists the node names that indexes refer to.
    logs = _File("logs")
    # The same for what scripts print that start launchers, by the number of their node.
    script_logs = _File("script-logs")
    _birth = _File("began")

    def snapshot(self, number: int) -> Path:
        """A snapshot that was judged: the replies of the nodes."""
        return self.path / f"{SNAPSHOT_PREFIX}{number:04}.json"

    def deliveries(self, receiver: str) -> Path:
        """Which messages this receiver has got."""
        return self.path / f"messages-{receiver}.jsonl"

    @property
    def began(self) -> float:
        """When the run was created, since ids of the same minute don't sort by time. 0 if that can't be read."""
        with suppress(OSError):
            return self._birth.stat().st_mtime
        return 0.0

    @property
    def written(self) -> float:
        """When its record was last written: of a run that is over, when it ended. 0 without a record."""
        times = [0.0]
        for path in (self.events, self.findings):
            with suppress(OSError):
                times.append(path.stat().st_mtime)
        return max(times)

    def make(self) -> None:
        """Creates the directory; raises FileExistsError if the run already exists."""
        self.path.mkdir(mode=PRIVATE)
        self.logs.mkdir(mode=PRIVATE)
        self._birth.touch(mode=PRIVATE_FILE)

    def claim(self) -> "ConductorLock":
        """Marks this process as the run's conductor for as long as it lives."""
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
        if not acquire_lock(fd, patience=_CLAIM_SECONDS):
            os.close(fd)
            run = path.parent.name
            raise AboardError(run_records.RUN_TAKEN, f"the run {run} already has a conductor", run=run)
        claim = cls(path, fd)
        claim.sign()
        return claim

    def sign(self) -> None:
        """Writes this process's pid, which changes with a fork; on a full disk the file stays empty."""
        with suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Releases the lock after an orderly end."""
        with suppress(OSError):
            self._path.unlink()
        os.close(self._fd)
