"""Faults: stopped and killed processes, an occupied port, a power loss."""

import signal
from typing import Annotated, ClassVar, Literal

from aboard.core.text.input_text import MAX_PORT
from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults import resident_program
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.find_processes import find_by_environment, find_by_pid, is_stopped
from aboard.sandbox.host import Host
from aboard.sandbox.namespaces.process_identity import ProcessIdentity
from aboard.sandbox.sandbox import Sandbox


@dataclass(frozen=True, kw_only=True)
class PortTaken(Fault):
    """A port is in use: another program listens on it and never answers."""

    name: ClassVar[str] = "port-taken"
    port: Annotated[int, "The port."] = 29500
    owner: Annotated[Literal["crew", "root"], "The user of that program."] = "crew"

    def check(self, box: Sandbox, host: Host) -> None:
        if not 1 <= self.port <= MAX_PORT:
            raise SandboxError(sandbox.FAULT_OPTION, f"{self.port} is not a port", "port-taken")

    def inject(self, box: Sandbox, host: Host) -> None:
        uid = box.crew_id if self.owner == "crew" else 0
        resident_program.start_resident(box, host, self.key, "hold-port", {"port": self.port, "uid": uid})

    def heal(self, box: Sandbox, host: Host) -> None:
        resident_program.end_resident(host, self.key)

    @property
    def claims(self) -> frozenset[str]:
        return frozenset({f"port {self.port}"})


@dataclass(frozen=True, kw_only=True)
class _ProcessFault(Fault):
    pid: Annotated[int | None, "The process with this pid inside the host."] = None
    environ: Annotated[str | None, "All processes with this text in their environment, such as a run id."] = None

    def check(self, box: Sandbox, host: Host) -> None:
        if (self.pid is None) == (self.environ is None):
            raise SandboxError(
                sandbox.FAULT_OPTION,
                "no process was selected: pass either --pid or --environ",
                "process",
                fault=self.name,
            )
        if not self._targets(host):
            what = f"pid {self.pid}" if self.pid is not None else f"{self.environ!r} in its environment"
            raise SandboxError(sandbox.NO_PROCESS, f"no process on {host.name} has {what}", node=host.name)

    def _targets(self, host: Host) -> list[ProcessIdentity]:
        if self.pid is not None:
            # Pid 1 is the host itself: use power-loss for that.
            return find_by_pid(host, self.pid) if self.pid > 1 else []
        return find_by_environment(host, str(self.environ).encode())


@dataclass(frozen=True, kw_only=True)
class ProcessStopped(_ProcessFault):
    """A process hangs (SIGSTOP); healing resumes it."""

    name: ClassVar[str] = "process-stopped"

    def inject(self, box: Sandbox, host: Host) -> None:
        for process in self._targets(host):
            process.kill(signal.SIGSTOP)

    def heal(self, box: Sandbox, host: Host) -> None:
        for process in self._targets(host):
            if is_stopped(process):
                process.kill(signal.SIGCONT)


@dataclass(frozen=True, kw_only=True)
class ProcessKilled(_ProcessFault):
    """A process dies (SIGKILL); it cannot be healed."""

    name: ClassVar[str] = "process-killed"
    momentary: ClassVar[bool] = True

    def inject(self, box: Sandbox, host: Host) -> None:
        for process in self._targets(host):
            process.kill()

    def heal(self, box: Sandbox, host: Host) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class PowerLoss(Fault):
    """The host loses power without closing its connections; healing boots it from its disk."""

    name: ClassVar[str] = "power-loss"
    survives_power: ClassVar[bool] = True

    def inject(self, box: Sandbox, host: Host) -> None:
        if host.on:
            host.kill_power()

    def heal(self, box: Sandbox, host: Host) -> None:
        host.power_on()
