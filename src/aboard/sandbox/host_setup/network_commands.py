"""The `ip -batch` input for the switch and for each host."""

from collections.abc import Iterable, Iterator

from aboard.sandbox.layout import HostAddress, SandboxLayout

_NEIGHBOURS_THAT_FIT = 20


def format_switch_batch(*, fabric: bool) -> str:
    """One bridge per network, in the outer network namespace."""
    return _join_lines(
        line
        for bridge in (["mgmt", "fabric"] if fabric else ["mgmt"])
        for line in (
            # No forward delay: a port carries traffic as soon as it is up.
            f"link add {bridge} type bridge forward_delay 0 stp_state 0",
            f"link set {bridge} up",
        )
    )


def format_cable_batch(places: Iterable[tuple[HostAddress, int]]) -> str:
    """A cable (veth pair) per host and network; its switch port has the host's name (`n2`, `n2i`)."""
    return _join_lines(
        line
        for place, pid in places
        for port, interface, bridge, mac in _list_interfaces(place)
        for line in (
            f"link add {port} type veth peer name {interface} address {mac} netns {pid}",
            f"link set {port} master {bridge} up",
        )
    )


def format_host_batch(host: HostAddress, layout: SandboxLayout) -> str:
    """The commands that a host runs for its NICs at boot."""
    lines = ["link set lo up", f"addr add {host.address}/16 brd + dev eth0", "link set eth0 up"]
    if host.fabric_address:
        lines += [f"addr add {host.fabric_address}/16 brd + dev eth1", "link set eth1 up"]
    if layout.nodes > _NEIGHBOURS_THAT_FIT:
        lines += [line for peer in layout.places.values() if peer != host for line in _format_neighbours(peer)]
    return _join_lines(lines)


def _format_neighbours(peer: HostAddress) -> Iterator[str]:
    """Static neighbour entries for a peer.

    The kernel has one table of at most 1024 learned neighbours (net.ipv4.neigh.default.gc_thresh3) for all
    network namespaces together, and only the machine can raise the limit: with 64 hosts that talk to each other,
    connections hang. An entry marked `extern_learn` does not count, and a stale one is still verified by ARP when
    it is used, so a dead host is still noticed.
    """
    yield f"neigh add {peer.address} lladdr {peer.mac} nud stale extern_learn dev eth0"
    if peer.fabric_address:
        yield f"neigh add {peer.fabric_address} lladdr {peer.fabric_mac} nud stale extern_learn dev eth1"


def list_switch_ports(host: HostAddress) -> list[str]:
    """The switch ports of a host's cables."""
    return [port for port, *_ in _list_interfaces(host)]


def _list_interfaces(host: HostAddress) -> list[tuple[str, str, str, str]]:
    interfaces = [(host.name, "eth0", "mgmt", host.mac)]
    if host.fabric_address:
        interfaces.append((f"{host.name}i", "eth1", "fabric", host.fabric_mac))
    return interfaces


def _join_lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
