"""A process told apart from a later one with the same number."""

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
        """The process that has this number now; ProcessLookupError when there is none."""
        return cls(pid=pid, start=int(_read_stat(pid)[19]))

    def alive(self) -> bool:
        """A zombie isn't alive: its memory, files and namespaces are gone."""
        try:
            fields = _read_stat(self.pid)
        except ProcessLookupError:
            return False
        return int(fields[19]) == self.start and fields[0] not in "ZX"

    def kill(self, *, timeout: float) -> bool:
        """SIGKILL, and wait; for the first process of a PID namespace that is the end of all in it."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            # The pidfd holds the number: what is checked here is what is killed below.
            if not self.alive():
                return True
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            return bool(poller.poll(timeout * 1000))
        except ProcessLookupError:
            return True
        finally:
            os.close(pidfd)


def read_boot_id() -> str:
    """The name of this boot: start times of another boot mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _read_stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from `state` on; the name before it may hold spaces and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
