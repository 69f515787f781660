"""Processes that are stopped or killed, a port that somebody has, a host without power."""

import os
import signal
from typing import Annotated, ClassVar, Literal

from aboard.core.words import MAX_PORT
from aboard.diagnoses import SandboxError, sandbox
from aboard.lazy import dataclass
from aboard.sandbox.faults import resident
from aboard.sandbox.faults.census import having, numbered, stopped
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.host import Host
from aboard.sandbox.process import Process
from aboard.sandbox.sandbox import Sandbox


@dataclass(frozen=True, kw_only=True)
class PortTaken(Fault):
    """A port is in use: another program listens on it and never answers."""

    name: ClassVar[str] = "port-taken"
    port: Annotated[int, "Which port."] = 29500
    owner: Annotated[Literal["crew", "root"], "Whose program it is."] = "crew"

    def check(self, box: Sandbox, host: Host) -> None:
        if not 1 <= self.port <= MAX_PORT:
            raise SandboxError(sandbox.FAULT_OPTION, f"{self.port} is no port", "port-taken")

    def inject(self, box: Sandbox, host: Host) -> None:
        uid = box.crew_id if self.owner == "crew" else 0
        resident.start(box, host, self.key, "hold-port", {"port": self.port, "uid": uid})

    def heal(self, box: Sandbox, host: Host) -> None:
        resident.end(host, self.key)

    @property
    def claims(self) -> frozenset[str]:
        return frozenset({f"port {self.port}"})


@dataclass(frozen=True, kw_only=True)
class _OnProcesses(Fault):
    pid: Annotated[int | None, "The process with this number, as the host itself counts."] = None
    environ: Annotated[str | None, "Every process that has this in its environment, such as a run id."] = None

    def check(self, box: Sandbox, host: Host) -> None:
        if (self.pid is None) == (self.environ is None):
            raise SandboxError(
                sandbox.FAULT_OPTION, "which process? Give --pid or --environ, one of them", "process", fault=self.name
            )
        if not self._targets(host):
            what = f"the number {self.pid}" if self.pid is not None else f"{self.environ!r} in its environment"
            raise SandboxError(sandbox.NO_PROCESS, f"no process of {host.name} has {what}", node=host.name)

    def _targets(self, host: Host) -> list[Process]:
        if self.pid is not None:
            # Its first process is the host: that is what power-loss is for.
            return numbered(host, self.pid) if self.pid > 1 else []
        return having(host, str(self.environ).encode())


@dataclass(frozen=True, kw_only=True)
class ProcessStopped(_OnProcesses):
    """A process hangs: SIGSTOP; healing lets it go on."""

    name: ClassVar[str] = "process-stopped"

    def inject(self, box: Sandbox, host: Host) -> None:
        for process in self._targets(host):
            _signal(process, signal.SIGSTOP)

    def heal(self, box: Sandbox, host: Host) -> None:
        for process in self._targets(host):
            if stopped(process):
                _signal(process, signal.SIGCONT)


@dataclass(frozen=True, kw_only=True)
class ProcessKilled(_OnProcesses):
    """A process dies: SIGKILL; it can't be healed."""

    name: ClassVar[str] = "process-killed"
    momentary: ClassVar[bool] = True

    def inject(self, box: Sandbox, host: Host) -> None:
        for process in self._targets(host):
            _signal(process, signal.SIGKILL)

    def heal(self, box: Sandbox, host: Host) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class PowerLoss(Fault):
    """The host goes dark without a word of farewell; healing boots it from the disk that it had."""

    name: ClassVar[str] = "power-loss"
    survives_power: ClassVar[bool] = True

    def inject(self, box: Sandbox, host: Host) -> None:
        if host.on:
            host.kill_power()

    def heal(self, box: Sandbox, host: Host) -> None:
        host.power_on()


def _signal(process: Process, number: signal.Signals) -> None:
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        # The pidfd holds the number: what is checked here is what is signalled.
        if process.alive():
            signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return
    finally:
        os.close(pidfd)
