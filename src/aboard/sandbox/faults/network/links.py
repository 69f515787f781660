"""Faults of network links: down, slow, lossy, high latency, MTU black hole."""

from typing import Annotated, ClassVar

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults import resident_program
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.network import nftables
from aboard.sandbox.faults.network.nftables import INTERFACES, Direction, NetworkName
from aboard.sandbox.faults.root_commands import require_program, run_as_root, run_script
from aboard.sandbox.host import Host
from aboard.sandbox.sandbox import Sandbox

_MILLION = 1_000_000
_QUEUE = 77
_QUEUE_PARTS = "CONFIG_NETFILTER_NETLINK_QUEUE and CONFIG_NETFILTER_XT_TARGET_NFQUEUE"
# tbf drops packets larger than its bucket; a bucket of 10 ms lets the link reach the rate.
_LEAST_BURST = 128 * 1024
_BURST_SECONDS = 0.01
# iptables creates its tables and never removes them; an empty one was ours.
_SWEEP = """
if iptables -w -t mangle -S | grep -q '^-A'; then exit 0; fi
nft delete table ip mangle 2>/dev/null || true
"""


@dataclass(frozen=True, kw_only=True)
class LinkDown(Fault):
    """The cable is unplugged: the NIC has no carrier."""

    name: ClassVar[str] = "link-down"
    network: Annotated[NetworkName, "The network whose cable is unplugged."] = "both"

    def check(self, box: Sandbox, host: Host) -> None:
        _list_cables(host, self.network)

    def inject(self, box: Sandbox, host: Host) -> None:
        # At the switch, like an unplugged cable: the NIC keeps its addresses and routes.
        for _, port in _list_cables(host, self.network):
            _run_on_switch(box, "ip", "link", "set", port, "down")

    def heal(self, box: Sandbox, host: Host) -> None:
        for _, port in _list_cables(host, self.network):
            _run_on_switch(box, "ip", "link", "set", port, "up")

    @property
    def claims(self) -> frozenset[str]:
        return frozenset(f"carrier of {interface}" for interface in _list_interfaces(self.network))


@dataclass(frozen=True, kw_only=True)
class LinkRateLimit(Fault):
    """The link is slow: its bandwidth is limited."""

    name: ClassVar[str] = "rate"
    mbit: Annotated[float, "Bandwidth, in Mbit/s."]
    way: Annotated[Direction, "Incoming packets, outgoing ones, or both."] = "both"
    network: Annotated[NetworkName, "The network."] = "both"

    def check(self, box: Sandbox, host: Host) -> None:
        require_program("tc", "iproute2")
        _list_cables(host, self.network)
        if self.mbit <= 0:
            raise SandboxError(sandbox.FAULT_OPTION, f"{self.mbit} Mbit/s is not a rate", "rate")

    def inject(self, box: Sandbox, host: Host) -> None:
        burst = max(_LEAST_BURST, int(self.mbit * _MILLION / 8 * _BURST_SECONDS))
        shape = ("root", "tbf", "rate", f"{self.mbit:f}mbit", "burst", f"{burst}b", "latency", "100ms")
        for interface, port in _list_cables(host, self.network):
            if self.way != "in":
                run_as_root(host, "tc", "qdisc", "replace", "dev", interface, *shape)
            if self.way != "out":
                _run_on_switch(box, "tc", "qdisc", "replace", "dev", port, *shape)

    def heal(self, box: Sandbox, host: Host) -> None:
        for interface, port in _list_cables(host, self.network):
            # A missing queue is fine: `inject` may have failed half-way.
            if self.way != "in":
                host.run(["tc", "qdisc", "del", "dev", interface, "root"], root=True)
            if self.way != "out":
                box.switch(["tc", "qdisc", "del", "dev", port, "root"])

    @property
    def claims(self) -> frozenset[str]:
        ways = ["in", "out"] if self.way == "both" else [self.way]
        return frozenset(f"rate {way} of {interface}" for way in ways for interface in _list_interfaces(self.network))


@dataclass(frozen=True, kw_only=True)
class PacketLoss(Fault):
    """The link loses packets at random: everything works, but slowly and irregularly."""

    name: ClassVar[str] = "loss"
    percent: Annotated[float, "Packet loss, in percent."]
    way: Annotated[Direction, "Incoming packets, outgoing ones, or both."] = "both"
    network: Annotated[NetworkName, "The network."] = "both"

    def check(self, box: Sandbox, host: Host) -> None:
        require_program("nft", "nftables")
        if not 0 < self.percent <= 100:  # noqa: PLR2004 - a percentage
            raise SandboxError(sandbox.FAULT_OPTION, f"{self.percent} % is out of range", "loss")

    def inject(self, box: Sandbox, host: Host) -> None:
        rule = f"numgen random mod {_MILLION} < {round(self.percent * _MILLION / 100)} drop"
        nftables.load_table(host, self.key, nftables.format_filter_chains(self.way, rule, network=self.network))

    def heal(self, box: Sandbox, host: Host) -> None:
        nftables.unload_table(host, self.key)


@dataclass(frozen=True, kw_only=True)
class LinkDelay(Fault):
    """The link has high latency: each incoming packet is delayed."""

    name: ClassVar[str] = "delay"
    resources: ClassVar[frozenset[str]] = frozenset({"the packet queue"})
    ms: Annotated[float, "Added round-trip time, in ms."]
    network: Annotated[NetworkName, "The network."] = "both"

    def check(self, box: Sandbox, host: Host) -> None:
        require_program("iptables", "iptables")
        if self.ms <= 0:
            raise SandboxError(sandbox.FAULT_OPTION, f"{self.ms} ms is not a delay", "delay")

    def inject(self, box: Sandbox, host: Host) -> None:
        resident_program.start_resident(box, host, self.key, "delay", {"queue": _QUEUE, "seconds": self.ms / 1000})
        # iptables, since many kernels have its NFQUEUE target but not nftables' own queue.
        if host.run(["iptables", "-C", *self._rule()], root=True).returncode == 0:
            return
        added = host.run(["iptables", "-A", *self._rule()], root=True)
        if added.returncode != 0:
            raise SandboxError(
                sandbox.KERNEL,
                f"this kernel cannot queue packets for a program: {added.stderr.strip()}",
                "boot",
                option=_QUEUE_PARTS,
            )

    def heal(self, box: Sandbox, host: Host) -> None:
        # The rule first: while the program is alive, no packet is lost.
        while host.run(["iptables", "-D", *self._rule()], root=True).returncode == 0:
            pass
        run_script(host, _SWEEP)
        resident_program.end_resident(host, self.key)

    def _rule(self) -> list[str]:
        interface = INTERFACES[self.network].replace("*", "+")
        # With the bypass, packets pass once the program is gone.
        queue = ["-j", "NFQUEUE", "--queue-num", str(_QUEUE), "--queue-bypass"]
        return ["PREROUTING", "-w", "-t", "mangle", "-i", interface, *queue]


@dataclass(frozen=True, kw_only=True)
class MtuBlackHole(Fault):
    """Large packets are dropped silently, small ones pass: logins may work, data transfers hang."""

    name: ClassVar[str] = "mtu-black-hole"
    limit: Annotated[int, "The largest IP packet that passes, in bytes."] = 1400
    way: Annotated[Direction, "Incoming packets, outgoing ones, or both."] = "both"
    network: Annotated[NetworkName, "The network."] = "both"

    def check(self, box: Sandbox, host: Host) -> None:
        require_program("nft", "nftables")
        _list_cables(host, self.network)

    def inject(self, box: Sandbox, host: Host) -> None:
        # No segmentation offload: several small packets that the kernel passes on as one must not count as large.
        self._bundles(box, host, "1")
        nftables.load_table(
            host,
            self.key,
            nftables.format_filter_chains(self.way, f"meta length > {self.limit} drop", network=self.network),
        )

    def heal(self, box: Sandbox, host: Host) -> None:
        nftables.unload_table(host, self.key)
        self._bundles(box, host, "65535")

    @property
    def claims(self) -> frozenset[str]:
        return frozenset(f"packet size of {interface}" for interface in _list_interfaces(self.network))

    def _bundles(self, box: Sandbox, host: Host, most: str) -> None:
        for interface, port in _list_cables(host, self.network):
            run_as_root(host, "ip", "link", "set", interface, "gso_max_segs", most)
            _run_on_switch(box, "ip", "link", "set", port, "gso_max_segs", most)


def _list_cables(host: Host, network: NetworkName) -> list[tuple[str, str]]:
    """The NICs and their switch ports."""
    ports = dict(zip(("eth0", "eth1"), host.ports, strict=False))
    found = [(interface, ports[interface]) for interface in _list_interfaces(network) if interface in ports]
    if not found:
        raise SandboxError(sandbox.FAULT_OPTION, "this sandbox has no fabric", "fabric")
    return found


def _list_interfaces(network: NetworkName) -> list[str]:
    return ["eth0", "eth1"] if network == "both" else [INTERFACES[network]]


def _run_on_switch(box: Sandbox, *argv: str) -> None:
    result = box.switch(argv)
    if result.returncode != 0:
        raise SandboxError(sandbox.FAULT, f"the switch: {argv[0]}: {result.stderr.strip()}")
