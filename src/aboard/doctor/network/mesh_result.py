"""The mesh as a value: which connections worked, and each node's addresses and name resolution."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from ipaddress import ip_address, ip_interface
from typing import Annotated, Literal, TypeAlias

from aboard.core.decoding import IpAddress, Matching, Word
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy_dataclass import dataclass

_OUTCOMES = "ok|refused|dropped|rejected|unresolved|silent|stalled|crawled|reset|untried"
# torchrun's and DeepSpeed's own default.
RENDEZVOUS_PORT = 29500


class PortKind(Enum):
    """Which kind of port was tried: a firewall may let one through and not the other."""

    RENDEZVOUS = "rendezvous"
    EPHEMERAL = "ephemeral"


Pair: TypeAlias = tuple[str, str]
# Addresses, or why there are none.
ResolvedAddresses: TypeAlias = tuple[IpAddress, ...] | Untrusted


@dataclass(frozen=True, kw_only=True)
class ConnectionAttempt:
    """One connection."""

    outcome: Annotated[str, Matching(_OUTCOMES)]
    seconds: float = 0.0
    local: IpAddress | Literal[""] = ""
    remote: IpAddress | Literal[""] = ""
    said: Untrusted = NO_TEXT


@dataclass(frozen=True, kw_only=True)
class OccupiedPort:
    """A port that a node could not bind, and its holder as far as the node's user may see it; 0 is no pid."""

    why: Word
    owner: Untrusted = NO_TEXT
    pid: int = 0
    ours: bool = False
    # The active run of Aboard's that it belongs to.
    run: Untrusted = NO_TEXT


@dataclass(frozen=True, kw_only=True)
class InterfaceAddress:
    """An address that an interface of a node has, as `10.77.0.3/16`."""

    interface: str
    address: str

    @property
    def host(self) -> str:
        return self.address.partition("/")[0]

    @property
    def usable(self) -> bool:
        """Whether peers could use it: neither loopback nor link-local."""
        bare = ip_address(self.host)
        return not (bare.is_loopback or bare.is_link_local)


@dataclass(frozen=True, kw_only=True)
class MeshResult:
    """Which connections worked. `targets` are the addresses that peers used; `missing` says why a node took no part."""

    port: int = RENDEZVOUS_PORT
    targets: Mapping[str, str] = field(default_factory=dict)
    tries: Mapping[tuple[str, str, PortKind], ConnectionAttempt] = field(default_factory=dict)
    taken: Mapping[str, OccupiedPort] = field(default_factory=dict)
    flaky: Mapping[tuple[str, str, PortKind], ConnectionAttempt] = field(default_factory=dict)
    # How each node resolves each name.
    resolved: Mapping[str, Mapping[str, ResolvedAddresses]] = field(default_factory=dict)
    hostnames: Mapping[str, Untrusted] = field(default_factory=dict)
    addresses: Mapping[str, tuple[InterfaceAddress, ...]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    sparse: bool = False

    @property
    def interfaces(self) -> dict[str, str]:
        """For each node, the interface that its peers reach it on; where they don't, the one it reaches them from."""
        chosen: dict[str, str] = {}
        incoming: dict[str, list[str]] = defaultdict(list)
        outgoing: dict[str, list[str]] = defaultdict(list)
        for (frm, to, _), each in self.tries.items():
            if each.outcome == "ok":
                incoming[to].append(each.remote)
                outgoing[frm].append(each.local)
        for node in self.addresses:
            names = self._list_interfaces(node, incoming[node]) or self._list_interfaces(node, outgoing[node])
            if names:
                chosen[node] = max(sorted(set(names)), key=names.count)
        return chosen

    def _list_interfaces(self, node: str, addresses: Sequence[str]) -> list[str]:
        return [name for name in (self.interface(node, each) for each in addresses) if name]

    def interface(self, node: str, address: str) -> str:
        """The interface of a node that has an address; "" when none has."""
        same = (address, address.removeprefix("::ffff:"))
        return next((at.interface for at in self.addresses.get(node, ()) if at.host in same), "")


def is_in_network(address: str, network: str) -> bool:
    """Whether an address is in the network of an interface's address, such as `10.77.0.3/16`."""
    try:
        return ip_address(address) in ip_interface(network).network
    except ValueError:
        return False
