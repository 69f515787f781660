"""Faults: slurmd killed, slurmctld stopped, munged with a wrong clock."""

from typing import Annotated, ClassVar

from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults.host.clock import TIMERS_STAY, find_faketime, remove_faketime_files
from aboard.sandbox.faults.root_commands import run_as_root, run_script
from aboard.sandbox.faults.slurm.slurm_fault import SlurmFault, is_daemon_running, stop_daemon
from aboard.sandbox.host import Host
from aboard.sandbox.sandbox import Sandbox
from aboard.sandbox.slurm.config_files import MUNGED_PID, SLURMCTLD_PID, SLURMD_PID

_AS_MUNGE = ("setpriv", "--reuid=munge", "--regid=munge", "--clear-groups")
_AWAIT = """
tries=0
until scontrol ping | grep -q ' UP$'; do tries=$((tries + 1)); [ "$tries" -lt 300 ]; sleep 0.1; done
"""


@dataclass(frozen=True, kw_only=True)
class SlurmdKilled(SlurmFault):
    """slurmd is dead (SIGKILL): running steps stay, and Slurm takes the node for lost after SlurmdTimeout."""

    name: ClassVar[str] = "slurmd-killed"
    daemon: ClassVar[str] = "slurmd"
    resources: ClassVar[frozenset[str]] = frozenset({"slurmd"})

    def inject(self, box: Sandbox, host: Host) -> None:
        stop_daemon(host, SLURMD_PID, signal="KILL")

    def heal(self, box: Sandbox, host: Host) -> None:
        if not is_daemon_running(host, SLURMD_PID):
            run_as_root(host, "slurmd")


@dataclass(frozen=True, kw_only=True)
class SlurmctldStopped(SlurmFault):
    """slurmctld is not running: commands of Slurm get no answer, running jobs stay."""

    name: ClassVar[str] = "slurmctld-stopped"
    daemon: ClassVar[str] = "slurmctld"
    resources: ClassVar[frozenset[str]] = frozenset({"slurmctld"})

    def inject(self, box: Sandbox, host: Host) -> None:
        # It saves its state when it is told to stop; killed, it would forget the jobs of the last seconds.
        stop_daemon(host, SLURMCTLD_PID, signal="TERM")

    def heal(self, box: Sandbox, host: Host) -> None:
        if not is_daemon_running(host, SLURMCTLD_PID):
            run_as_root(host, "slurmctld")
        run_script(host, _AWAIT)


@dataclass(frozen=True, kw_only=True)
class MungeClock(SlurmFault):
    """munged has a wrong clock: other hosts reject its credentials, and it theirs, if it is off by over 5 minutes."""

    name: ClassVar[str] = "munge-clock"
    daemon: ClassVar[str] = "munged"
    resources: ClassVar[frozenset[str]] = frozenset({"munged"})
    seconds: Annotated[float, "How far ahead; negative is behind."] = 600.0

    def check(self, box: Sandbox, host: Host) -> None:
        super().check(box, host)
        find_faketime()

    def inject(self, box: Sandbox, host: Host) -> None:
        stop_daemon(host, MUNGED_PID, signal="TERM")
        clock = (f"LD_PRELOAD={find_faketime()}", f"FAKETIME={self.seconds:+f}", TIMERS_STAY)
        run_as_root(host, *_AS_MUNGE, "env", *clock, "munged")

    def heal(self, box: Sandbox, host: Host) -> None:
        stop_daemon(host, MUNGED_PID, signal="TERM")
        remove_faketime_files(host)
        run_as_root(host, *_AS_MUNGE, "munged")
