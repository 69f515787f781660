"""Identifies a process, also when its pid is reused later."""

import os
import select
import signal
from pathlib import Path
from typing import Self

from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """A pid and the clock tick at which it started; the pair is unique within a boot."""

    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> Self:
        """The process that has this pid now; ProcessLookupError when there is none."""
        return cls(pid=pid, start=int(_read_stat(pid)[19]))

    def alive(self) -> bool:
        """Whether it runs; a zombie does not: its memory, files and namespaces are gone."""
        try:
            fields = _read_stat(self.pid)
        except ProcessLookupError:
            return False
        return int(fields[19]) == self.start and fields[0] not in "ZX"

    def kill(self, number: signal.Signals = signal.SIGKILL, *, timeout: float = 0.0) -> bool:
        """Sends a signal and waits until it has exited; the first process of a PID namespace takes all others along."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            # The pidfd pins the pid: the process checked here is the one that gets the signal.
            if not self.alive():
                return True
            signal.pidfd_send_signal(pidfd, number)
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            return bool(poller.poll(timeout * 1000))
        except ProcessLookupError:
            return True
        finally:
            os.close(pidfd)


def read_boot_id() -> str:
    """The id of this boot: start times are comparable only within a boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _read_stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from `state` on; the name before it may contain spaces and parentheses."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
