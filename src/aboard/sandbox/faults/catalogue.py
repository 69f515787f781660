"""Every fault there is; a new one is a small class in a file of its family, and one line here."""

from aboard.sandbox.faults.clock import ClockOffset
from aboard.sandbox.faults.conntrack import ConntrackFull
from aboard.sandbox.faults.disk import DiskFull, PathMissing
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.firewall import Drop, Reject
from aboard.sandbox.faults.groups import CpuQuota, FewTasks, MemoryLimit
from aboard.sandbox.faults.limits import LowLimits, SmallShm
from aboard.sandbox.faults.link import Delay, LinkDown, Loss, MtuBlackHole, Rate
from aboard.sandbox.faults.names import OwnNameOnLoopback, Unresolved
from aboard.sandbox.faults.process import PortTaken, PowerLoss, ProcessKilled, ProcessStopped
from aboard.sandbox.faults.python import HostilePython, NoPython, OldPython, OtherPython
from aboard.sandbox.faults.shell import LoginShell, NoisyShell
from aboard.sandbox.faults.sshd import KeyRemoved, MaxStartups, OtherHostKey, SshdSlow, SshdStopped

FAULTS: tuple[type[Fault], ...] = (
    Drop,
    Reject,
    LinkDown,
    Rate,
    Loss,
    Delay,
    MtuBlackHole,
    ConntrackFull,
    SshdStopped,
    SshdSlow,
    MaxStartups,
    OtherHostKey,
    KeyRemoved,
    Unresolved,
    OwnNameOnLoopback,
    ClockOffset,
    SmallShm,
    LowLimits,
    MemoryLimit,
    CpuQuota,
    FewTasks,
    DiskFull,
    PathMissing,
    NoPython,
    OldPython,
    OtherPython,
    HostilePython,
    NoisyShell,
    LoginShell,
    PortTaken,
    ProcessStopped,
    ProcessKilled,
    PowerLoss,
)
