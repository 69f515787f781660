"""Faults: small /dev/shm, low limits of open files, locked memory and processes."""

from typing import Annotated, ClassVar

from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.host.ssh_server import is_sshd_running, require_sshd
from aboard.sandbox.faults.root_commands import run_as_root, run_script
from aboard.sandbox.host import Host
from aboard.sandbox.host_setup.boot_host import SSHD_PID_FILE
from aboard.sandbox.sandbox import Sandbox

# Few enough for `aboard check` to warn.
FEW_FILES = 1000


@dataclass(frozen=True, kw_only=True)
class SmallShm(Fault):
    """Shared memory (/dev/shm) is small, as in a container: data loaders and NCCL run out of it."""

    name: ClassVar[str] = "small-shm"
    resources: ClassVar[frozenset[str]] = frozenset({"size of /dev/shm"})
    mib: Annotated[int, "Size of /dev/shm, in MiB."] = 1

    def inject(self, box: Sandbox, host: Host) -> None:
        run_as_root(host, "mount", "-o", f"remount,size={self.mib}m", "/dev/shm")  # noqa: S108 - a host's own, which is the point

    def heal(self, box: Sandbox, host: Host) -> None:
        # tmpfs(5): half of the memory is the default size.
        run_as_root(host, "mount", "-o", "remount,size=50%", "/dev/shm")  # noqa: S108 - a host's own, which is the point


@dataclass(frozen=True, kw_only=True)
class LowLimits(Fault):
    """Sessions get low resource limits (ulimit), as from an sshd or slurmd that was started with them."""

    name: ClassVar[str] = "low-limits"
    resources: ClassVar[frozenset[str]] = frozenset({"limits"})
    nofile: Annotated[int | None, "Open files; 1000 if no limit is given."] = None
    memlock: Annotated[int | None, "Locked memory, in KiB."] = None
    nproc: Annotated[int | None, "Processes of the user, counted across all hosts, which share a kernel."] = None

    def check(self, box: Sandbox, host: Host) -> None:
        require_sshd(host, "limits")

    def inject(self, box: Sandbox, host: Host) -> None:
        lower = 'read -r pid < "$1"; shift; prlimit --pid "$pid" "$@"'
        run_script(host, lower, str(SSHD_PID_FILE), *self._limits())

    def heal(self, box: Sandbox, host: Host) -> None:
        # Root cannot raise a hard limit on every machine, so a new sshd replaces the limited one.
        if is_sshd_running(host):
            host.sshd_restart()

    def reapply(self, box: Sandbox, host: Host) -> None:
        if is_sshd_running(host):
            self.inject(box, host)

    def _limits(self) -> list[str]:
        bytes_locked = None if self.memlock is None else self.memlock * 1024
        wanted = {"nofile": self.nofile, "memlock": bytes_locked, "nproc": self.nproc}
        if not any(value is not None for value in wanted.values()):
            wanted["nofile"] = FEW_FILES
        return [f"--{limit}={value}:{value}" for limit, value in wanted.items() if value is not None]
