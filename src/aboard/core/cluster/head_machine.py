"""Which node is this machine, and the address by which its peers reach it.

On each peer, `localhost` means the peer itself. With other hosts in the cluster, it is replaced by an address; not by
the one that this machine's own name resolves to, since Debian maps that to 127.0.1.1 in /etc/hosts.
"""

from collections import Counter
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING

from aboard.core.cluster.node import Node, TransportKind
from aboard.diagnoses import InputError
from aboard.diagnoses.usage import configuration
from aboard.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LOCALHOST = "localhost"
_LOOPBACK_NAMES = frozenset({LOCALHOST, "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost"})


@dataclass(frozen=True, kw_only=True)
class HeadMachine:
    """The machine that `aboard` runs on: its names, its addresses, and the user who runs the command."""

    names: frozenset[str]
    addresses: tuple[str, ...]
    user: str


def is_head_node(node: Node, here: HeadMachine) -> bool:
    """Whether the node is this machine.

    A port or another user means ssh: `localhost` with port 2222 is a tunnel or a container.
    """
    if node.port is not None or node.user not in {None, here.user}:
        return False
    target = node.target
    return is_loopback(target) or target.lower() in here.names or _has_address(target, here.addresses)


def is_loopback(target: str) -> bool:
    """Whether a name or address means the local machine on every machine."""
    if target.lower() in _LOOPBACK_NAMES:
        return True
    address = _parse_address(target)
    return address is not None and address.is_loopback


def assign_head_address(
    nodes: "Sequence[Node]", here: HeadMachine, source_addresses: "Iterable[str]"
) -> tuple[Node, ...]:
    """Gives a `localhost` among other nodes an address that its peers can reach.

    `source_addresses` holds this machine's source address for each peer, according to its routes.
    """
    local = [node for node in nodes if node.transport is TransportKind.LOCAL]
    if len(local) > 1:
        first, second = (node.name for node in local[:2])
        seen = f"{first} and {second} are both this machine"
        raise InputError.of(configuration.HEAD_TWICE, "cluster", seen, node=second)
    if not local or len(nodes) == 1 or not is_loopback(local[0].target):
        return tuple(nodes)
    address = find_reachable_address(here, source_addresses)
    if address is None:
        name = local[0].name
        seen = f"{name} is listed with other hosts, but this machine has no address that they can reach"
        raise InputError.of(configuration.HEAD_ADDRESS, "cluster", seen, node=name)
    return tuple(replace(node, address=address) if node.transport is TransportKind.LOCAL else node for node in nodes)


def find_reachable_address(here: HeadMachine, source_addresses: "Iterable[str]") -> str | None:
    """The source address for most peers, else the first address of this machine that peers could reach."""
    counts = Counter(address for address in source_addresses if _is_reachable(address))
    if counts:
        return counts.most_common(1)[0][0]
    return next(filter(_is_reachable, here.addresses), None)


def _is_reachable(text: str) -> bool:
    address = _parse_address(text)
    return address is not None and not (address.is_loopback or address.is_link_local or address.is_unspecified)


def _has_address(target: str, addresses: "Iterable[str]") -> bool:
    address = _parse_address(target)
    return address is not None and any(address == _parse_address(own) for own in addresses)


def _parse_address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
