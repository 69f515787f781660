"""Faults: control groups that limit the memory, CPU time or number of tasks of a host's sessions."""

import sys
from pathlib import Path
from typing import Annotated, ClassVar

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.host.ssh_server import is_sshd_running, require_sshd
from aboard.sandbox.faults.root_commands import run_script
from aboard.sandbox.host import Host
from aboard.sandbox.host_setup.boot_host import SSHD_PID_FILE
from aboard.sandbox.sandbox import Sandbox

_POINT = "/sys/fs/cgroup"
_PERIOD = 100_000

# $1 is the tree, $2 the group's name, then come pairs of file and value. A host has no control groups of its own, so
# this mounts the machine's hierarchy in it; sessions that sshd starts from now on are in a child of the host's group.
_ENTER = f"""
tree={_POINT}/$1
mountpoint -q {_POINT} || mount -t tmpfs -o mode=755 aboard {_POINT}
mkdir -p "$tree"
mountpoint -q "$tree" || mount -t cgroup -o "$1" aboard "$tree"
group=$tree$(sed -n "s/^[0-9]*:\\([a-z]*,\\)*$1\\(,[a-z]*\\)*://p" /proc/1/cgroup)
group=${{group%/}}/$2
mkdir -p "$group"
shift 2
while [ $# -gt 0 ]; do
    if [ -e "$group/$1" ]; then echo "$2" > "$group/$1"; fi
    shift 2
done
read -r pid < {SSHD_PID_FILE}
echo "$pid" > "$group/cgroup.procs"
echo "$group"
"""
# $1 is the group, $2 a Python, $3 its code, $4 more bytes than the limit: the OOM killer must kill it.
_OVERDO = """
if grep -q '^oom_kill 0$' "$1/memory.oom_control"; then
    sh -c 'echo $$ > "$1/cgroup.procs"; exec "$2" -ISc "$3" "$4"' sh "$@" || true
fi
grep -q '^oom_kill [1-9]' "$1/memory.oom_control"
"""
_GREEDY = "import sys; print(len(b'x' * int(sys.argv[1])))"
_LEAVE = f"""
tree={_POINT}/$1
if mountpoint -q "$tree"; then
    above=$tree$(sed -n "s/^[0-9]*:\\([a-z]*,\\)*$1\\(,[a-z]*\\)*://p" /proc/1/cgroup)
    above=${{above%/}}
    tries=0
    while [ -d "$above/$2" ] && ! rmdir "$above/$2" 2>/dev/null && [ "$tries" -lt 500 ]; do
        while read -r pid; do echo "$pid" > "$above/cgroup.procs" || true; done < "$above/$2/cgroup.procs"
        tries=$((tries + 1))
    done
    [ ! -d "$above/$2" ]
    umount "$tree"
    rmdir "$tree"
fi
if mountpoint -q {_POINT} && [ -z "$(ls {_POINT})" ]; then umount {_POINT}; fi
"""


@dataclass(frozen=True, kw_only=True)
class ControlGroupFault(Fault):
    tree: ClassVar[str]
    #: The option that sets the limit, and its lowest value.
    lowest: ClassVar[tuple[str, float]]

    def check(self, box: Sandbox, host: Host) -> None:
        value, least = getattr(self, self.lowest[0]), self.lowest[1]
        if value < least:
            seen = f"{value:g} is too low, because logins would fail"
            raise SandboxError(sandbox.FAULT_OPTION, seen, self.name, least=f"{least:g}")
        if not Path(_POINT, self.tree, "cgroup.procs").exists():
            raise SandboxError(
                sandbox.KERNEL,
                f"this machine has no {_POINT}/{self.tree}, but the fault needs cgroup v1, alone or with v2",
                "groups",
            )
        require_sshd(host, "control group")

    def inject(self, box: Sandbox, host: Host) -> None:
        self._enter(box, host)

    def heal(self, box: Sandbox, host: Host) -> None:
        run_script(host, _LEAVE, self.tree, _format_group_name(box, host))

    def reapply(self, box: Sandbox, host: Host) -> None:
        # A new sshd is in the group of the process that started it.
        if is_sshd_running(host):
            self.inject(box, host)

    @property
    def claims(self) -> frozenset[str]:
        return frozenset({f"control group of {self.tree}"})

    def _enter(self, box: Sandbox, host: Host) -> str:
        files = [word for file, value in self._limits().items() for word in (file, str(value))]
        return run_script(host, _ENTER, self.tree, _format_group_name(box, host), *files).strip()

    def _limits(self) -> dict[str, int]:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class MemoryLimit(ControlGroupFault):
    """A control group limits the memory of sessions, as in a container or a small Slurm job."""

    name: ClassVar[str] = "memory-limit"
    tree: ClassVar[str] = "memory"
    lowest: ClassVar[tuple[str, float]] = ("mib", 128)
    mib: Annotated[int, "Memory of all sessions together, in MiB."] = 512
    killed: Annotated[bool, "Also let the OOM killer kill one process."] = False

    def inject(self, box: Sandbox, host: Host) -> None:
        group = self._enter(box, host)
        if self.killed:
            run_script(host, _OVERDO, group, sys.executable, _GREEDY, str(2 * self.mib << 20))

    def _limits(self) -> dict[str, int]:
        # The second limit includes swap; not every kernel has it.
        return {"memory.limit_in_bytes": self.mib << 20, "memory.memsw.limit_in_bytes": self.mib << 20}


@dataclass(frozen=True, kw_only=True)
class CpuQuota(ControlGroupFault):
    """A control group limits the CPU time of sessions to a few cores, although they see all of them."""

    name: ClassVar[str] = "cpu-quota"
    tree: ClassVar[str] = "cpu"
    lowest: ClassVar[tuple[str, float]] = ("cores", 0.05)
    cores: Annotated[float, "CPU time in cores; 0.5 is half a core."] = 0.5

    def _limits(self) -> dict[str, int]:
        return {"cpu.cfs_period_us": _PERIOD, "cpu.cfs_quota_us": round(self.cores * _PERIOD)}


@dataclass(frozen=True, kw_only=True)
class FewTasks(ControlGroupFault):
    """A control group limits the processes and threads of sessions, whatever their ulimits are."""

    name: ClassVar[str] = "few-tasks"
    tree: ClassVar[str] = "pids"
    lowest: ClassVar[tuple[str, float]] = ("tasks", 64)
    tasks: Annotated[int, "Processes and threads of all sessions together."] = 300

    def _limits(self) -> dict[str, int]:
        return {"pids.max": self.tasks}


def _format_group_name(box: Sandbox, host: Host) -> str:
    """A name that is unique among all hosts of all sandboxes, which share one tree."""
    return f"aboard-{box.name}-{host.name}"
