"""Control groups that give a host's sessions less than the machine has: memory, time, processes."""

import sys
from pathlib import Path
from typing import Annotated, ClassVar

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.host.ssh_server import is_sshd_running
from aboard.sandbox.faults.root_commands import run_script
from aboard.sandbox.host import Host
from aboard.sandbox.host_setup.boot_host import SSHD_PID_FILE
from aboard.sandbox.sandbox import Sandbox

_POINT = "/sys/fs/cgroup"
_LEAST_MIB, _LEAST_CORES, _LEAST_TASKS = 128, 0.05, 64
_PERIOD = 100_000

# $1 is the tree, $2 the group's name, then come files and what goes into them. A host has no control groups of its own,
# so it is shown the machine's, of which its own group is a part; whoever sshd starts from now on is in one below that.
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
# $1 is the group, $2 a Python, $3 its lines, $4 more bytes than there are: the kernel must kill it.
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
class _ControlGroupFault(Fault):
    tree: ClassVar[str]

    def check(self, box: Sandbox, host: Host) -> None:
        if not Path(_POINT, self.tree, "cgroup.procs").exists():
            raise SandboxError(
                sandbox.KERNEL,
                f"no {_POINT}/{self.tree} here: this fault needs version 1 of control groups, or a machine with both",
                "groups",
            )
        if not is_sshd_running(host):
            raise SandboxError(
                sandbox.FAULT_OPTION,
                f"sshd of {host.name} doesn't run, and sessions get their group from it",
                "sshd-stopped",
                node=host.name,
            )

    def inject(self, box: Sandbox, host: Host) -> None:
        self._enter(box, host)

    def heal(self, box: Sandbox, host: Host) -> None:
        run_script(host, _LEAVE, self.tree, _format_group_name(box, host))

    def hold(self, box: Sandbox, host: Host) -> None:
        # A new sshd is in the group of whoever started it.
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
class MemoryLimit(_ControlGroupFault):
    """Sessions may have little memory, by a control group, as in a container or a small Slurm job."""

    name: ClassVar[str] = "memory-limit"
    tree: ClassVar[str] = "memory"
    mib: Annotated[int, "How many mebibytes all of them together may have."] = 512
    killed: Annotated[bool, "A process has been killed for want of more."] = False

    def check(self, box: Sandbox, host: Host) -> None:
        _require_at_least(self.mib, _LEAST_MIB, self.name)
        super().check(box, host)

    def inject(self, box: Sandbox, host: Host) -> None:
        group = self._enter(box, host)
        if self.killed:
            run_script(host, _OVERDO, group, sys.executable, _GREEDY, str(2 * self.mib << 20))

    def _limits(self) -> dict[str, int]:
        # The second counts swap too; not every kernel has it.
        return {"memory.limit_in_bytes": self.mib << 20, "memory.memsw.limit_in_bytes": self.mib << 20}


@dataclass(frozen=True, kw_only=True)
class CpuQuota(_ControlGroupFault):
    """Sessions may have the time of a few cores only, by a control group, whatever they see."""

    name: ClassVar[str] = "cpu-quota"
    tree: ClassVar[str] = "cpu"
    cores: Annotated[float, "The time of how many cores; half a core is 0.5."] = 0.5

    def check(self, box: Sandbox, host: Host) -> None:
        _require_at_least(self.cores, _LEAST_CORES, self.name)
        super().check(box, host)

    def _limits(self) -> dict[str, int]:
        return {"cpu.cfs_period_us": _PERIOD, "cpu.cfs_quota_us": round(self.cores * _PERIOD)}


@dataclass(frozen=True, kw_only=True)
class FewTasks(_ControlGroupFault):
    """Sessions may have few processes and threads, by a control group, whatever their limits say."""

    name: ClassVar[str] = "few-tasks"
    tree: ClassVar[str] = "pids"
    tasks: Annotated[int, "How many all of them together may have."] = 300

    def check(self, box: Sandbox, host: Host) -> None:
        _require_at_least(self.tasks, _LEAST_TASKS, self.name)
        super().check(box, host)

    def _limits(self) -> dict[str, int]:
        return {"pids.max": self.tasks}


def _format_group_name(box: Sandbox, host: Host) -> str:
    """All hosts of all sandboxes are in one tree."""
    return f"aboard-{box.name}-{host.name}"


def _require_at_least(value: float, least: float, fault: str) -> None:
    if value < least:
        raise SandboxError(sandbox.FAULT_OPTION, f"nobody can log in with {value:g}", fault, least=f"{least:g}")
