"""Faults: firewalls that drop or reject packets between hosts.

The rules go into iptables' own chains, where an administrator's rules are. A separate nftables table would not behave
like that firewall: a packet that one table accepts is still dropped by another (nft(8)), so the
`iptables -I INPUT … -j ACCEPT` that fixes a real firewall would have no effect.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal

from aboard.core.cluster.node_sets import expand_node_set
from aboard.core.text.input_text import MAX_PORT
from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.network.nftables import INTERFACES, Direction, NetworkName
from aboard.sandbox.faults.root_commands import require_program, run_as_root, run_script
from aboard.sandbox.host import Host
from aboard.sandbox.sandbox import Sandbox

# Replies to this host's own connections arrive at ports of the same range: match only the first packet.
_NEW_CONNECTION = ("-m", "tcp", "--syn")
# A rule takes 15 ports, and a range counts as two: iptables-extensions(8), multiport.
_RANGES_PER_RULE = 7
_ANSWERS = {
    "tcp-reset": ("-j", "REJECT", "--reject-with", "tcp-reset"),
    "host-prohibited": ("-j", "REJECT", "--reject-with", "icmp-host-prohibited"),
}
_KERNEL_OPTIONS = (
    "CONFIG_NETFILTER_XT_MATCH_MULTIPORT, CONFIG_NETFILTER_XT_MATCH_COMMENT and CONFIG_IP_NF_TARGET_REJECT"
)
# Rules carry the fault's key as their comment. Then delete an empty table: iptables itself never removes one.
_UNLOAD_SCRIPT = """
{ echo '*filter'; iptables -w -S | grep -e "--comment $1 " | sed 's/^-A/-D/'; echo COMMIT; } | iptables-restore -w -n
if iptables -w -S | grep -q -e '^-A' -e '^-P [A-Z]* DROP'; then exit 0; fi
nft delete table ip filter 2>/dev/null || true
"""


@dataclass(frozen=True, kw_only=True)
class _Firewall(Fault):
    ports: Annotated[str | None, "TCP ports, such as 29500, 1024-65535 or 22,80; all traffic if omitted."] = None
    peer: Annotated[str | None, "Only from or to these hosts, such as n1 or n[1-3]."] = None
    way: Annotated[Direction, "Incoming connections, outgoing ones, or both."] = "in"
    network: Annotated[NetworkName, "The network."] = "both"
    open_too: Annotated[bool, "With --ports: also cut open connections."] = False

    def check(self, box: Sandbox, host: Host) -> None:
        require_program("iptables", "iptables")
        require_program("nft", "nftables")
        list(self.rules(box))

    def inject(self, box: Sandbox, host: Host) -> None:
        _load_rules(host, self.key, list(self.rules(box)))

    def heal(self, box: Sandbox, host: Host) -> None:
        run_script(host, _UNLOAD_SCRIPT, self.key)

    def rules(self, box: Sandbox) -> Iterator[tuple[str, ...]]:
        """The iptables rules: each one's chain and the rest of its arguments."""
        sides = {"in": ("INPUT", "-i", "-s"), "out": ("OUTPUT", "-o", "-d")}
        interface = INTERFACES[self.network].replace("*", "+")
        for chain, side, end in sides.values() if self.way == "both" else [sides[self.way]]:
            for peer in self._peers(box) or [""]:
                for ports in self._ports():
                    yield (chain, side, interface, *((end, peer) if peer else ()), *ports, *self._answer())

    def _answer(self) -> tuple[str, ...]:
        raise NotImplementedError

    def _ports(self) -> list[tuple[str, ...]]:
        if self.ports is None:
            # Only TCP has resets.
            return [("-p", "tcp") if "tcp-reset" in self._answer() else ()]
        new = () if self.open_too else _NEW_CONNECTION
        ranges = [each.replace("-", ":") for each in _parse_port_ranges(self.ports)]
        starts = range(0, len(ranges), _RANGES_PER_RULE)
        parts = [",".join(ranges[start : start + _RANGES_PER_RULE]) for start in starts]
        return [("-p", "tcp", "-m", "multiport", "--dports", part, *new) for part in parts]

    def _peers(self, box: Sandbox) -> list[str]:
        if self.peer is None:
            return []
        hosts = [box.host(name) for name in expand_node_set(self.peer, where="--peer")]
        return [address for host in hosts for address in (host.address, host.fabric_address) if address]


@dataclass(frozen=True, kw_only=True)
class FirewallDrop(_Firewall):
    """A firewall drops packets: connection attempts time out."""

    name: ClassVar[str] = "drop"

    def _answer(self) -> tuple[str, ...]:
        return ("-j", "DROP")


@dataclass(frozen=True, kw_only=True)
class FirewallReject(_Firewall):
    """A firewall rejects connections: `Connection refused` or `No route to host`."""

    name: ClassVar[str] = "reject"
    answer: Annotated[
        Literal["tcp-reset", "host-prohibited"], "The reply: `Connection refused` or `No route to host`."
    ] = "tcp-reset"

    def _answer(self) -> tuple[str, ...]:
        return _ANSWERS[self.answer]


def _parse_port_ranges(ports: str) -> list[str]:
    found = []
    for part in ports.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,5})(?:-([0-9]{1,5}))?\s*", part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= low <= high <= MAX_PORT:
            raise SandboxError(sandbox.FAULT_OPTION, f"{part.strip()!r} is not a port or a port range", "ports")
        found.append(f"{low}-{high}" if high > low else str(low))
    return found


def _load_rules(host: Host, key: str, rules: Sequence[Sequence[str]]) -> None:
    """Removes the fault's old rules, then loads the new ones: all of them or none."""
    run_script(host, _UNLOAD_SCRIPT, key)
    lines = "".join(f"-A {' '.join([rule[0], '-m comment --comment', key, *rule[1:]])}\n" for rule in rules)
    try:
        run_as_root(host, "iptables-restore", "-w", "-n", text=f"*filter\n{lines}COMMIT\n")
    except SandboxError as error:
        raise SandboxError(
            sandbox.KERNEL, f"this kernel lacks a part of iptables: {error.seen}", "boot", option=_KERNEL_OPTIONS
        ) from error
