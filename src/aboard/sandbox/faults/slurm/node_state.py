"""Faults: a drained node, a failing prolog, too few ports for srun."""

from typing import Annotated, ClassVar

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults import file_edits
from aboard.sandbox.faults.root_commands import run_as_root
from aboard.sandbox.faults.slurm.slurm_fault import SlurmFault, resume_node, stop_daemon
from aboard.sandbox.host import Host
from aboard.sandbox.sandbox import Sandbox
from aboard.sandbox.slurm.config_files import SLURM_CONF, SLURMD_PID, SRUN_PORTS

_PORTS = "SrunPortRange="
# Slurm ignores a range of one port.
_LEAST_PORTS = 2


@dataclass(frozen=True, kw_only=True)
class NodeDrained(SlurmFault):
    """The node is drained, as by an administrator: it starts no new jobs, and steps of its jobs go on."""

    name: ClassVar[str] = "node-drained"
    survives_power: ClassVar[bool] = True
    daemon: ClassVar[str] = "slurmd"
    resources: ClassVar[frozenset[str]] = frozenset({"state of the Slurm node"})
    reason: Annotated[str, "The reason that Slurm shows."] = "bad DIMM"

    def inject(self, box: Sandbox, host: Host) -> None:
        run_as_root(box.head, "scontrol", "update", f"nodename={host.name}", "state=drain", f"reason={self.reason}")

    def heal(self, box: Sandbox, host: Host) -> None:
        resume_node(box, host, mark="DRAIN")


@dataclass(frozen=True, kw_only=True)
class PrologFails(SlurmFault):
    """The site's prolog fails for the next job: Slurm drains the node and holds or cancels the job."""

    name: ClassVar[str] = "prolog-fails"
    survives_power: ClassVar[bool] = True
    daemon: ClassVar[str] = "slurmd"
    resources: ClassVar[frozenset[str]] = frozenset({"slurmd", "state of the Slurm node"})

    def inject(self, box: Sandbox, host: Host) -> None:
        file_edits.edit_lines(host, self.key, SLURM_CONF, first=["Prolog=/bin/false"])
        _restart_slurmd(host)

    def heal(self, box: Sandbox, host: Host) -> None:
        file_edits.undo_edit(host, self.key)
        _restart_slurmd(host)
        resume_node(box, host, mark="Reason=Prolog")


@dataclass(frozen=True, kw_only=True)
class FewSrunPorts(SlurmFault):
    """Few ports are left for srun on this host: more than one srun at once fails."""

    name: ClassVar[str] = "few-srun-ports"
    survives_power: ClassVar[bool] = True
    daemon: ClassVar[str] = "munged"
    resources: ClassVar[frozenset[str]] = frozenset({"srun's ports"})
    ports: Annotated[int, "Number of ports; one srun takes four."] = 6

    def check(self, box: Sandbox, host: Host) -> None:
        super().check(box, host)
        first, last = SRUN_PORTS
        if not _LEAST_PORTS <= self.ports <= last - first + 1:
            raise SandboxError(sandbox.FAULT_OPTION, f"{self.ports} ports are out of range", "few-srun-ports")

    def inject(self, box: Sandbox, host: Host) -> None:
        first = SRUN_PORTS[0]
        line = f"{_PORTS}{first}-{first + self.ports - 1}"
        file_edits.edit_lines(host, self.key, SLURM_CONF, first=[line], drop=lambda old: old.startswith(_PORTS))

    def heal(self, box: Sandbox, host: Host) -> None:
        file_edits.undo_edit(host, self.key)


def _restart_slurmd(host: Host) -> None:
    # Not by SIGHUP, after which it reads its file some time later; running steps survive both.
    stop_daemon(host, SLURMD_PID, signal="TERM")
    run_as_root(host, "slurmd")
