"""The life of faults: recorded, refused, healed by another process, and no trace of them afterwards."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aboard.diagnoses import AboardError, SandboxError
from aboard.sandbox import Host, Sandbox
from aboard.sandbox.faults import (
    FAULTS,
    Fault,
    heal_all_faults,
    heal_fault,
    inject_fault,
    inject_temporarily,
    list_active_faults,
)
from aboard.sandbox.faults.host.clock import ClockOffset
from aboard.sandbox.faults.host.containers import ContainerFault
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
from aboard.sandbox.faults.slurm.node_state import NodeDrained
from aboard.sandbox.faults.slurm.slurm_fault import SlurmFault

pytestmark = pytest.mark.ground

EXAMPLES: tuple[Fault, ...] = (
    FirewallDrop(ports="29500", peer="n1", way="both"),
    FirewallReject(answer="host-prohibited"),
    LinkDown(),
    LinkRateLimit(mbit=10),
    PacketLoss(percent=5),
    LinkDelay(ms=5),
    MtuBlackHole(),
    ConntrackFull(percent=10),
    SshdStopped(),
    SshdSlow(seconds=1),
    MaxStartups(),
    OtherHostKey(),
    KeyRemoved(),
    UnresolvedName(peer="n1"),
    OwnNameOnLoopback(),
    ClockOffset(seconds=60),
    SmallShm(),
    LowLimits(nofile=100),
    MemoryLimit(killed=True),
    CpuQuota(),
    FewTasks(),
    DiskFull(),
    PathMissing(path="/shared"),
    NoPython(),
    OldPython(),
    OtherPython(without="json"),
    HostilePython(),
    NoisyShell(),
    LoginShell(shell="dash"),  # noqa: S604 - not that shell
    PortTaken(),
    ProcessStopped(environ="ABOARD_TEST=stop"),
    PowerLoss(),
)
# All that a fault may have touched, as root sees it; what another fault of the same kind may leave shows up here.
LOOK = r"""
nft list ruleset
tc qdisc | sort
cat /proc/sys/net/netfilter/nf_conntrack_udp_timeout
cut -d: -f2- /proc/"$(cat /run/sshd.pid)"/cgroup
ip -d -o link | sed 's/^[0-9]*: //; s/@if[0-9]*//; s/ qlen [0-9]*//'
findmnt -rn -o TARGET,FSTYPE,OPTIONS | sed 's/,size=[0-9]*k//; s/,uuid=on//'
df -BG --output=target,size / /dev/shm /tmp /run /private /shared
find /etc /home/crew /private /usr/bin/python* /usr/local/bin /var/lib/aboard-sandbox /run /dev/shm \
    -xdev ! -name '*.lock' ! -path '/run/mount/*' ! -type d -printf '%p %m %u %g %l\n' | sort
find /etc /home/crew /private -xdev -type f -exec sha256sum {} + | sort
ss -ltnH | sed 's/  */ /g' | sort
ps -eo user=,stat=,args= | cut -c 1-60 | grep -v -e defunct -e 'sh -c' -e ps -e sort -e grep -e cut | sort
grep . /proc/"$(cat /run/sshd.pid)"/limits
"""


@pytest.fixture(autouse=True)
def well(box: Sandbox) -> Iterator[None]:
    """Each test leaves the shared hosts as it found them."""
    yield
    assert list_active_faults(box) == {}


def look(host: Host) -> list[str]:
    """What it looks like at rest: a program that has just ended or begun shows in one look only."""
    deadline = time.monotonic() + 5
    last = _look(host)
    while (now := _look(host)) != last and time.monotonic() < deadline:
        last = now
    return now


def looks(host: Host, wanted: list[str]) -> bool:
    """Whether it looks so, at once or when it has come to rest."""
    return _look(host) == wanted or look(host) == wanted


def _look(host: Host) -> list[str]:
    return host.run(["sh", "-c", LOOK], root=True).stdout.splitlines()


def aboard(box: Sandbox, *words: str) -> subprocess.CompletedProcess[str]:
    """`aboard sandbox …` in a process of its own, as a user types it."""
    argv = [sys.executable, "-m", "aboard", "sandbox", *words, "--name", box.name]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def test_examples_are_complete() -> None:
    """Every fault that leaves something to heal is tried here; those of Slurm and containers have their own hosts."""
    elsewhere = (SlurmFault, ContainerFault)
    wanted = {kind for kind in FAULTS if not kind.momentary and not issubclass(kind, elsewhere)}
    assert {type(example) for example in EXAMPLES} == wanted


# One of each mechanism: firewall, queue, link, sshd, lines of a file, clock, limits, disk, program, process,
# power. The others use the same, and are nightly.
_EVERY_TIME = (
    FirewallDrop,
    LinkRateLimit,
    LinkDown,
    SshdStopped,
    UnresolvedName,
    ClockOffset,
    LowLimits,
    DiskFull,
    NoPython,
    PortTaken,
    PowerLoss,
)
_NO_TRACE = [
    pytest.param(
        fault,
        id=fault.name,
        # The kernel counts its kills for the whole machine.
        marks=[
            *([] if isinstance(fault, _EVERY_TIME) else [pytest.mark.nightly]),
            *([pytest.mark.serial] if isinstance(fault, MemoryLimit) else []),
        ],
    )
    for fault in EXAMPLES
]


@pytest.mark.parametrize("fault", _NO_TRACE)
def test_no_trace(box: Sandbox, fault: Fault) -> None:
    """Healing what was never broken does no harm; what is broken shows; what is healed has left no trace."""
    n4 = box.host("n4")
    sleeper = n4.popen(["sleep", "600"], env={"ABOARD_TEST": "stop"}) if isinstance(fault, ProcessStopped) else None
    before = look(n4)
    # As when the process that injects is killed after it has recorded and before it has begun.
    fault.heal(box, n4)
    assert looks(n4, before)
    assert inject_fault(box, n4, fault)
    assert not n4.on or _look(n4) != before
    assert list_active_faults(box) == {"n4": [fault]}
    assert heal_fault(box, n4, fault)
    assert looks(n4, before)
    assert not heal_fault(box, n4, fault)
    if sleeper:
        sleeper.kill()
        sleeper.wait(timeout=10)


def test_twice(box: Sandbox) -> None:
    """The same fault once more changes nothing; another one in its place is refused with the way out."""
    n2 = box.host("n2")
    with inject_temporarily(box, n2, LinkRateLimit(mbit=5)):
        before = look(n2)
        assert not inject_fault(box, n2, LinkRateLimit(mbit=5))
        assert looks(n2, before)
        with pytest.raises(SandboxError, match="rate --mbit 5") as caught:
            inject_fault(box, n2, LinkRateLimit(mbit=6))
        assert caught.value.fix == f"aboard sandbox heal rate --node n2 --name {box.name}"
        assert looks(n2, before)


_REFUSED = (
    FirewallDrop(peer="n99"),
    LinkRateLimit(mbit=1, network="fabric"),
    DiskFull(path="/nowhere"),
    ProcessStopped(environ="nobody has this"),
    NodeDrained(),
)
_REFUSED_NIGHTLY = (
    FirewallDrop(ports="high"),
    LinkRateLimit(mbit=0),
    PacketLoss(percent=101),
    LinkDelay(ms=-1),
    DiskFull(path="/shared"),
    PathMissing(path="private"),
    OtherPython(),
    OtherPython(program="/nowhere"),
    PortTaken(port=22),
    PortTaken(port=70000),
    ProcessStopped(pid=1),
    ProcessKilled(),
)


@pytest.mark.parametrize(
    "fault",
    [
        *(pytest.param(fault, id=fault.describe()) for fault in _REFUSED),
        *(pytest.param(fault, id=fault.describe(), marks=pytest.mark.nightly) for fault in _REFUSED_NIGHTLY),
    ],
)
def test_refused(box: Sandbox, fault: Fault) -> None:
    """What can't be done is refused with a reason, and nothing is touched or recorded."""
    n2 = box.host("n2")
    before = look(n2)
    with pytest.raises(AboardError) as caught:
        inject_fault(box, n2, fault)
    assert caught.value.fix
    assert list_active_faults(box) == {}
    assert looks(n2, before)


def test_two_faults_in_one_file(box: Sandbox) -> None:
    """Two faults that edit one file heal in any order, and a line of the user's stays."""
    n2 = box.host("n2")
    before = look(n2)
    names, own = UnresolvedName(peer="n1"), OwnNameOnLoopback()
    for first, second in ((names, own), (own, names)):
        inject_fault(box, n2, names)
        inject_fault(box, n2, own)
        n2.run(["sh", "-c", "echo 10.77.9.9 mine >> /etc/hosts"], root=True)
        heal_fault(box, n2, first)
        assert (n2.run(["getent", "ahostsv4", "n2"]).stdout.split()[0] == "127.0.1.1") == (first is names)
        assert (n2.run(["getent", "hosts", "n1"]).returncode == 0) == (first is names)
        heal_fault(box, n2, second)
        assert n2.run(["getent", "hosts", "mine"]).returncode == 0
        n2.run(["sed", "-i", "/mine/d", "/etc/hosts"], root=True)
    assert sorted(set(look(n2)) - set(before)) == [line for line in look(n2) if line.endswith("  /etc/hosts")]


def test_heal_all_boots(box: Sandbox) -> None:
    """Healing all of a host gives it power, too, whoever took it."""
    n2 = box.host("n2")
    with inject_temporarily(box, n2, MaxStartups()):
        n2.kill_power()
        assert [type(fault) for fault in heal_all_faults(box, n2)] == [MaxStartups]
    assert n2.on
    assert box.head.run(["ssh", "-oBatchMode=yes", "n2", "true"]).returncode == 0


def test_off_is_refused(box: Sandbox) -> None:
    """A host without power can't be broken further, and the way out is said."""
    n2 = box.host("n2")
    with inject_temporarily(box, n2, PowerLoss()):
        with pytest.raises(SandboxError, match="is off") as caught:
            inject_fault(box, n2, MaxStartups())
        assert "aboard sandbox heal" in caught.value.fix
        assert list_active_faults(box) == {"n2": [PowerLoss()]}


def test_typed(box: Sandbox) -> None:
    """`break`, `status` and `heal` as a user types them, each in a process of its own."""
    done = aboard(box, "break", "drop", "--node", "n[2-3]", "--ports", "29500")
    assert done.stdout == (
        "n2 is broken: drop --ports 29500\n"
        "n3 is broken: drop --ports 29500\n"
        f"Undo: aboard sandbox heal drop --node 'n[2-3]' --name {box.name}\n"
    )
    assert "already" in aboard(box, "break", "drop", "--node", "n2", "--ports", "29500").stdout
    aboard(box, "break", "max-startups", "--node", "n2", "--limit", "3")
    assert list_active_faults(box) == {
        "n2": [FirewallDrop(ports="29500"), MaxStartups(limit=3)],
        "n3": [FirewallDrop(ports="29500")],
    }
    assert f"(aboard sandbox heal max-startups --node n2 --name {box.name})" in aboard(box, "status").stdout
    assert aboard(box, "heal", "drop", "--node", "n2").stdout == "n2 is healed: drop --ports 29500\n"
    assert list_active_faults(box) == {"n2": [MaxStartups(limit=3)], "n3": [FirewallDrop(ports="29500")]}
    assert aboard(box, "heal").stdout.splitlines() == [
        "n2 is healed: max-startups --limit 3",
        "n3 is healed: drop --ports 29500",
    ]
    assert aboard(box, "heal").stdout == "Nothing to heal.\n"


def test_typed_wrong(box: Sandbox) -> None:
    """A wrong word or host is answered with the right ones, and nothing breaks."""
    assert "did you mean 'link-down'?" in aboard(box, "break", "link-donw", "--node", "n2").stderr
    assert "has no host 'n9'" in aboard(box, "break", "drop", "--node", "n[2,9]").stderr
    assert "'sideways' is not one of" in aboard(box, "break", "drop", "--node", "n2", "--way", "sideways").stderr
    assert list_active_faults(box) == {}


def test_down_needs_no_heal(box_name: str) -> None:
    """A sandbox that is broken in many ways goes down like any other, programs of faults included."""
    with Sandbox.up(box_name, nodes=1) as small:
        n1 = small.host("n1")
        for fault in (LinkDelay(ms=5), PortTaken(), SshdSlow(), DiskFull(), PathMissing(path="/shared"), LinkDown()):
            inject_fault(small, n1, fault)
        pids = n1.pids()
        assert len(pids) > 3
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not Path("/run/aboard-sandbox", box_name).exists()
