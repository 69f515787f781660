"""The base class of Slurm's faults, and the commands that they share."""

from typing import ClassVar

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.root_commands import run_script
from aboard.sandbox.host import Host
from aboard.sandbox.layout import HEAD
from aboard.sandbox.sandbox import Sandbox

_IS_RUNNING = '[ -s "$1" ] && read -r pid < "$1" && kill -0 "$pid" 2>/dev/null'
_STOP = """
[ -s "$2" ] || exit 0
read -r pid < "$2"
kill -"$1" "$pid" || exit 0
tries=0
while kill -0 "$pid"; do tries=$((tries + 1)); [ "$tries" -lt 1500 ]; sleep 0.02; done
rm -f "$2"
"""
_RESUME = """
case "$(scontrol --oneliner show node "$1")" in
    *State=*"$2"*) scontrol update "nodename=$1" state=resume ;;
esac
"""


@dataclass(frozen=True, kw_only=True)
class SlurmFault(Fault):
    """A fault of a host of a sandbox with Slurm."""

    #: The daemon that the host must have: slurmctld is on the head, slurmd on the nodes, munged everywhere.
    daemon: ClassVar[str]

    def check(self, box: Sandbox, host: Host) -> None:
        if not box.layout.slurm:
            seen = f"sandbox {box.name!r} has no Slurm"
            raise SandboxError(sandbox.FAULT_OPTION, seen, "slurm", name=box.name)
        if (self.daemon == "slurmctld") != (host.name == HEAD) and self.daemon != "munged":
            node = HEAD if self.daemon == "slurmctld" else "n1"
            seen = f"{host.name} runs no {self.daemon}"
            raise SandboxError(sandbox.FAULT_OPTION, seen, "slurm-daemon", fault=self.name, node=node, name=box.name)


def stop_daemon(host: Host, pid_file: str, *, signal: str) -> None:
    """Sends a daemon this signal and waits until it has exited; does nothing if it is not running."""
    run_script(host, _STOP, signal, pid_file)


def is_daemon_running(host: Host, pid_file: str) -> bool:
    """Whether the process in this pid file exists."""
    return host.run(["sh", "-c", _IS_RUNNING, "sh", pid_file], root=True).returncode == 0


def resume_node(box: Sandbox, host: Host, *, mark: str) -> None:
    """Returns a node to service if Slurm's line about its state contains this text."""
    run_script(box.head, _RESUME, host.name, mark)
