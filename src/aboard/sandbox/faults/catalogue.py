"""All faults; a new one is a small class in the file of its family and one name here."""

from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.host.clock import ClockOffset
from aboard.sandbox.faults.host.containers import ImageDiffers, ImageMissing, NoRuntime, NoSubordinateIds
from aboard.sandbox.faults.host.control_groups import CpuQuota, FewTasks, MemoryLimit
from aboard.sandbox.faults.host.disk import DiskFull, PathMissing
from aboard.sandbox.faults.host.login_shell import LoginShell, NoisyShell
from aboard.sandbox.faults.host.processes import PortTaken, PowerLoss, ProcessKilled, ProcessStopped
from aboard.sandbox.faults.host.python_interpreter import HostilePython, NoPython, OldPython, OtherPython
from aboard.sandbox.faults.host.resource_limits import LowLimits, SmallShm
from aboard.sandbox.faults.host.ssh_server import KeyRemoved, MaxStartups, OtherHostKey, SshdSlow, SshdStopped
from aboard.sandbox.faults.network.connection_tracking import ConntrackFull
from aboard.sandbox.faults.network.firewall import FirewallDrop, FirewallReject
from aboard.sandbox.faults.network.links import LinkDelay, LinkDown, LinkRateLimit, MtuBlackHole, PacketLoss
from aboard.sandbox.faults.network.name_resolution import OwnNameOnLoopback, UnresolvedName
from aboard.sandbox.faults.slurm.daemons import MungeClock, SlurmctldStopped, SlurmdKilled
from aboard.sandbox.faults.slurm.node_state import FewSrunPorts, NodeDrained, PrologFails

FAULTS: tuple[type[Fault], ...] = (
    FirewallDrop, FirewallReject, LinkDown, LinkRateLimit, PacketLoss, LinkDelay, MtuBlackHole, ConntrackFull,
    SshdStopped, SshdSlow, MaxStartups, OtherHostKey, KeyRemoved, UnresolvedName, OwnNameOnLoopback, ClockOffset,
    SmallShm, LowLimits, MemoryLimit, CpuQuota, FewTasks, DiskFull, PathMissing,
    NoPython, OldPython, OtherPython, HostilePython, NoisyShell, LoginShell,
    ImageDiffers, ImageMissing, NoSubordinateIds, NoRuntime, PortTaken, ProcessStopped, ProcessKilled, PowerLoss,
    SlurmdKilled, SlurmctldStopped, MungeClock, NodeDrained, PrologFails, FewSrunPorts,
)  # fmt: skip
