"""Faults that `aboard check` must name, and that its printed fix must fix when typed as printed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from aboard.sandbox.faults import Fault
from aboard.sandbox.faults.host.clock import ClockOffset
from aboard.sandbox.faults.host.disk import DiskFull, PathMissing
from aboard.sandbox.faults.host.login_shell import NoisyShell
from aboard.sandbox.faults.host.processes import PortTaken, PowerLoss
from aboard.sandbox.faults.host.python_interpreter import NoPython, OldPython
from aboard.sandbox.faults.host.resource_limits import LowLimits, SmallShm
from aboard.sandbox.faults.host.ssh_server import KeyRemoved, MaxStartups, OtherHostKey, SshdSlow, SshdStopped
from aboard.sandbox.faults.network.firewall import FirewallDrop, FirewallReject
from aboard.sandbox.faults.network.links import LinkDown, LinkRateLimit, MtuBlackHole, PacketLoss
from aboard.sandbox.faults.network.name_resolution import OwnNameOnLoopback, UnresolvedName
from mishaps import DEAD_DNS, HANGING_MOUNT, STRANGERS, Mishap, leave_behind

ALL = "1024-65535"
NOT_RENDEZVOUS = "1024-29499,29501-65535"
WORKDIR = "/private/job"
EVERY = ("n1", "n2", "n3", "n4")

Named = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """`row` is the kind of failure in our catalogue; the first of `named` must be the first finding."""

    row: int
    broken: tuple[tuple[str, Fault | Mishap], ...]
    named: tuple[Named, ...]
    full: bool = False
    workdir: str = WORKDIR
    #: Lines of aboard.yaml with their position.
    settings: tuple[tuple[str, str], ...] = ()
    #: Shell lines run beforehand in the working directory of every node.
    files: str = "true"
    #: Alternative codes: a dead host is a timeout or no route, depending on the kernel's neighbour table.
    or_codes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    #: Whether its consequences must be folded into it.
    folds: bool = False
    #: Why no command can fix it, so that the sandbox heals it; empty if the printed fix is typed.
    by_hand: str = ""

    def describe(self) -> str:
        return " + ".join(f"{fault.describe()} on {where}" for where, fault in self.broken)


def _build_case(row: int, where: str, fault: Fault | Mishap, code: str, *nodes: str, **more: Any) -> Case:
    return Case(row=row, broken=((where, fault),), named=((code, nodes or (where,)),), **more)


def _build_mishap(what: str, lines: str) -> Mishap:
    return Mishap(what=what, lines=lines)


REACH = (
    _build_case(
        1, "n2", KeyRemoved(), "reach-key-refused", by_hand="aboard trust asks for a password, which only a person has"
    ),
    _build_case(
        1,
        "n2",
        _build_mishap("others may write authorized_keys", "chmod o+w /home/crew/.ssh/authorized_keys"),
        "reach-key-refused",
    ),
    _build_case(1, "n2", _build_mishap("others may write the home", "chmod o+w /home/crew"), "reach-key-refused"),
    _build_case(
        1,
        "head",
        _build_mishap("others may read the private key", "chmod 644 /home/crew/.ssh/id_ed25519"),
        "reach-key-refused",
        *EVERY,
    ),
    _build_case(2, "n2", OtherHostKey(), "reach-host-key-changed"),
    _build_case(
        2,
        "head",
        _build_mishap("n2 isn't in known_hosts", "sed -i '/^n2,/d' /home/crew/.ssh/known_hosts"),
        "reach-host-key-unknown",
        "n2",
        by_hand="aboard trust asks a person to compare the fingerprints",
    ),
    _build_case(3, "n2", SshdStopped(), "reach-refused"),
    _build_case(4, "n2", FirewallDrop(network="management"), "reach-timeout"),
    _build_case(4, "n2", FirewallReject(network="management", answer="host-prohibited"), "reach-no-route"),
    _build_case(
        4,
        "n4",
        PowerLoss(),
        "reach-timeout",
        or_codes={"reach-timeout": "reach-no-route"},
        by_hand="somebody must press the button",
    ),
    _build_case(5, "head", UnresolvedName(peer="n2"), "reach-unresolved", "n2"),
    _build_case(5, "n2", UnresolvedName(peer="n3"), "network-unresolved"),
    _build_case(6, "n2", SshdSlow(seconds=5), "reach-slow-login"),
    _build_case(6, "n2", DEAD_DNS, "reach-slow-login"),
    Case(row=7, broken=(("n2", MaxStartups()), ("n2", STRANGERS)), named=(("reach-dropped", ("n2",)),)),
    _build_case(
        8, "n3", NoPython(), "reach-no-python", by_hand="a Python is installed from an archive, which isn't here"
    ),
    _build_case(8, "n3", OldPython(), "reach-old-python"),
    _build_case(8, "n3", NoisyShell(), "reach-noisy-shell"),
    Case(
        row=8,
        broken=tuple(
            (name, _build_mishap("`module` in login shells only", "echo 'module() { :; }' > /etc/profile.d/modules.sh"))
            for name in EVERY
        ),
        settings=(("under cluster:", "setup: ['true', module load cuda]"),),
        named=(("reach-setup", EVERY),),
    ),
    _build_case(
        8,
        "n3",
        _build_mishap("a setup line that loses the PATH", "true"),
        "reach-no-python",
        settings=(("for n3", "setup: [export PATH=/opt/cuda/bin]"),),
    ),
)
HOST = (
    _build_case(9, "n2", Mishap(what="ranks outlive their supervisor", act=leave_behind), "host-leftovers"),
    _build_case(
        9,
        "n1",
        _build_mishap(
            "ranks outlive torchrun",
            "RANK=0 MASTER_ADDR=n1 setsid setpriv --reuid crew --regid crew --clear-groups sleep 7200"
            " </dev/null >/dev/null 2>&1 &",
        ),
        "host-other-ranks",
    ),
    _build_case(10, "n2", OwnNameOnLoopback(), "host-own-name"),
    _build_case(
        12, "n2", ClockOffset(seconds=30), "host-clock", by_hand="hosts have one kernel's clock: setting it sets ours"
    ),
    _build_case(14, "n3", LowLimits(nofile=1000), "host-open-files"),
    _build_case(14, "n3", LowLimits(nproc=800), "host-processes"),
    _build_case(
        14,
        "n2",
        _build_mishap("a low soft limit", 'read -r pid < /run/sshd.pid; prlimit --pid "$pid" --nofile=1000:'),
        "host-open-files",
    ),
    _build_case(15, "n2", SmallShm(mib=64), "host-shm"),
    _build_case(
        17,
        "n4",
        _build_mishap("sshd is bound to a core", 'read -r pid < /run/sshd.pid; taskset -pc 0 "$pid"'),
        "host-affinity",
    ),
)
NETWORK = (
    _build_case(
        10,
        "n2",
        _build_mishap("n3i is 127.0.0.1", "sed -i '/ n3i$/d' /etc/hosts; echo '127.0.0.1 n3i' >> /etc/hosts"),
        "network-peer-on-loopback",
        "n2",
        "n3",
        folds=True,
    ),
    _build_case(
        5,
        "n2",
        _build_mishap(
            "n3i is another address", "a=$(getent hosts n3 | cut -d' ' -f1); sed -i \"s/^.* n3i$/$a n3i/\" /etc/hosts"
        ),
        "network-names-differ",
    ),
    _build_case(
        11,
        "n2",
        _build_mishap("GLOO_SOCKET_IFNAME=ib0", "true"),
        "network-interface-missing",
        settings=(("for n2", "env: {GLOO_SOCKET_IFNAME: ib0}"),),
    ),
    _build_case(21, "n3", FirewallDrop(ports="29500"), "network-rendezvous-dropped"),
    _build_case(21, "n3", FirewallDrop(ports=ALL), "network-dropped"),
    _build_case(21, "n3", FirewallDrop(ports=ALL, way="out"), "network-dropped"),
    _build_case(21, "n2", FirewallDrop(ports=ALL, peer="n1"), "network-dropped", "n1", "n2"),
    _build_case(22, "n3", FirewallReject(ports=ALL), "network-refused"),
    _build_case(22, "n3", FirewallReject(ports="29500"), "network-rendezvous-refused"),
    _build_case(22, "n3", FirewallReject(ports=ALL, answer="host-prohibited"), "network-rejected"),
    _build_case(24, "n1", PortTaken(), "network-port-taken"),
    _build_case(25, "n3", FirewallDrop(ports=NOT_RENDEZVOUS), "network-ephemeral-dropped"),
    _build_case(26, "n3", MtuBlackHole(network="fabric"), "network-mtu"),
    _build_case(
        27,
        "n3",
        LinkRateLimit(mbit=50, network="fabric"),
        "network-slow",
        full=True,
        by_hand="another cable or switch port",
    ),
    _build_case(27, "n3", PacketLoss(percent=5, network="fabric"), "network-loss", full=True, by_hand="another cable"),
    _build_case(
        29, "n3", LinkDown(network="fabric"), "network-link-down", folds=True, by_hand="the cable must be plugged in"
    ),
    _build_case(
        29, "n3", _build_mishap("eth1 is set down", "ip link set dev eth1 down"), "network-link-down", folds=True
    ),
)
SOFTWARE = (
    _build_case(
        18,
        "n3",
        _build_mishap("NCCL_DEBUG in one ~/.bashrc", "echo 'export NCCL_DEBUG=INFO' >> /home/crew/.bashrc"),
        "software-variable",
    ),
    _build_case(
        19,
        "n3",
        _build_mishap("other code", f"echo 2 > {WORKDIR}/train.py"),
        "software-code",
        full=True,
        files="echo 1 > train.py",
    ),
    _build_case(
        19,
        "n3",
        _build_mishap("other settings", f"echo '{{}}' > {WORKDIR}/ds_config.json"),
        "software-config",
        full=True,
        files="echo '{\"a\": 1}' > ds_config.json",
    ),
)
STORAGE = (
    _build_case(59, "n2", PathMissing(path=WORKDIR), "storage-missing"),
    _build_case(
        59,
        "n2",
        PathMissing(path="/shared"),
        "storage-not-shared",
        full=True,
        workdir="/shared",
        by_hand="the share has no server here from which it could be mounted",
    ),
    _build_case(60, "n2", DiskFull(path=WORKDIR), "storage-full", by_hand="a person decides what to delete"),
    _build_case(
        60,
        "n2",
        _build_mishap("a read-only mount", f"mount -t tmpfs -o ro,mode=777 none {WORKDIR}"),
        "storage-read-only",
    ),
    _build_case(60, "n3", _build_mishap("root's directory", f"chown 0:0 {WORKDIR}"), "storage-read-only"),
    _build_case(61, "n2", HANGING_MOUNT, "storage-dead-mount"),
)
TWO_AT_ONCE = (
    Case(
        row=21,
        broken=(("n3", FirewallDrop(ports="29500")), ("n2", OwnNameOnLoopback())),
        named=(("network-rendezvous-dropped", ("n3",)), ("host-own-name", ("n2",))),
    ),
    Case(
        row=3,
        broken=(("n2", SshdStopped()), ("n4", SmallShm(mib=64))),
        named=(("reach-refused", ("n2",)), ("host-shm", ("n4",))),
    ),
)
CASES = (*REACH, *HOST, *NETWORK, *SOFTWARE, *STORAGE, *TWO_AT_ONCE)
