"""Fault: wrong wall clock. All hosts share one kernel and its clock, so libfaketime gives programs another time."""

from pathlib import Path
from typing import Annotated, ClassVar

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults import file_edits
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.host.ssh_server import SSHD_CONFIG, reload_sshd
from aboard.sandbox.faults.root_commands import run_as_root, run_script
from aboard.sandbox.host import Host
from aboard.sandbox.host_setup.system_files import CREW_PATH
from aboard.sandbox.sandbox import Sandbox

_PRELOAD = "/etc/ld.so.preload"
_OFFSET = "/etc/faketimerc"
_LIBRARY = "faketime/libfaketimeMT.so.1"
#: A wrong wall clock does not affect timers: without this, a lock's timeout would be off by as much as the clock.
TIMERS_STAY = "FAKETIME_DONT_FAKE_MONOTONIC=1"

_SWEEP = "rm -f /dev/shm/faketime_shm_* /dev/shm/sem.faketime_sem_*"


@dataclass(frozen=True, kw_only=True)
class ClockOffset(Fault):
    """The wall clock is wrong for every program started from now on, including logins."""

    name: ClassVar[str] = "clock-offset"
    survives_power: ClassVar[bool] = True
    resources: ClassVar[frozenset[str]] = frozenset({"the clock"})
    seconds: Annotated[float, "How far ahead; negative is behind."] = 30.0

    def check(self, box: Sandbox, host: Host) -> None:
        find_faketime()

    def inject(self, box: Sandbox, host: Host) -> None:
        library = find_faketime()
        file_edits.edit_lines(
            host, f"{self.key}-env", SSHD_CONFIG, first=[_SETENV], drop=lambda line: line == _PLAIN_SETENV
        )
        run_as_root(host, "tee", _OFFSET, text=f"{self.seconds:+f}\n")
        file_edits.edit_lines(host, f"{self.key}-preload", _PRELOAD, first=[library])
        reload_sshd(host)

    def heal(self, box: Sandbox, host: Host) -> None:
        file_edits.undo_edit(host, f"{self.key}-preload")
        # Running programs read this file every ten seconds and return to the true time.
        run_as_root(host, "rm", "-f", _OFFSET)
        remove_faketime_files(host)
        file_edits.undo_edit(host, f"{self.key}-env")
        reload_sshd(host)


_PLAIN_SETENV = f"SetEnv PATH={CREW_PATH}"
_SETENV = f"{_PLAIN_SETENV} {TIMERS_STAY}"


def remove_faketime_files(host: Host) -> None:
    """Removes what libfaketime leaves in shared memory for each process that was killed."""
    run_script(host, _SWEEP)


def find_faketime() -> str:
    """The path of libfaketime; raises with its package if it is missing."""
    candidates = [*Path("/usr/lib").glob(f"*/{_LIBRARY}"), Path("/usr/lib64", _LIBRARY), Path("/usr/lib", _LIBRARY)]
    for path in candidates:
        if path.exists():
            return str(path)
    raise SandboxError(sandbox.PROGRAM, "not installed here: libfaketime", packages=["libfaketime"])
