"""The probe `mesh`: each node connects to its peers on the rendezvous port and on an ephemeral one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from ipaddress import ip_address, ip_interface
from typing import Annotated, Any

from aboard.core.cluster.contact import ReachedNode
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.decoding import IpAddress, MaxLength, PortNumber, Word, decode, try_decode
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest, Replies, Script
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.network.mesh_result import (
    RENDEZVOUS_PORT,
    ConnectionAttempt,
    InterfaceAddress,
    MeshResult,
    OccupiedPort,
    PortKind,
    ResolvedAddresses,
    is_in_network,
)
from aboard.lazy_dataclass import dataclass

# With more nodes, each connects to O(log n) of its peers only.
ALL_PAIRS_UP_TO = 64
# Many full-size packets, so that a path with too small an MTU shows.
LARGE = 64 * 1024
CONNECT_SECONDS = 2.0
AGAIN_SECONDS = 3.0
# On one machine with many sandbox hosts, or behind a slow switch, many connections take longer than few.
SECONDS_PER_NODE = 1 / 32
IFNAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
# A node connects to all of thousands of peers, if it is asked to.
_MOST = 100_000


def select_peers(names: Sequence[str], *, all_pairs: bool = False) -> dict[str, tuple[str, ...]]:
    """The peers of each node: all, or above 64 nodes those 1, 2, 4, … places away on both sides."""
    count = len(names)
    if all_pairs or count <= ALL_PAIRS_UP_TO:
        return {name: tuple(peer for peer in names if peer != name) for name in names}
    steps = [1 << power for power in range(count.bit_length()) if 1 << power <= count // 2]
    return {
        name: tuple(dict.fromkeys(names[(at + sign * step) % count] for step in steps for sign in (1, -1)))
        for at, name in enumerate(names)
    }


def build_mesh_probe(*, all_pairs: bool = False) -> MultiNodeProbe[MeshResult]:
    """The probe; with `all_pairs`, every pair is tested however many nodes there are."""
    return MultiNodeProbe(name="mesh", script=lambda facts: _run_mesh_probe(facts, all_pairs=all_pairs), early=True)


MESH = build_mesh_probe()


def get_mesh(facts: Facts) -> MeshResult:
    """The mesh; empty if it was not tested."""
    outcome = MESH.outcome(facts)
    return outcome if isinstance(outcome, MeshResult) else MeshResult()


def _run_mesh_probe(facts: Facts, *, all_pairs: bool) -> Script[MeshResult]:
    nodes = {node.name: node for node in facts.list_reached()}
    port = get_rendezvous_port(facts)
    began = ProbeRequest(op="listen", fields={"ports": [port, 0]})
    replies = _MeshReplies(facts, (yield dict.fromkeys(nodes, began)))
    peers_of = select_peers(list(replies.ports), all_pairs=all_pairs)
    plans = {name: list(replies.plan(name, peers_of[name])) for name in replies.ports}
    first = yield replies.asks(plans, CONNECT_SECONDS)
    tries = replies.tries(plans, first)
    replies.learn(first)
    failed = {
        name: [replies.by_address(dial) for dial in plan if dial.key in tries and tries[dial.key].outcome != "ok"]
        for name, plan in plans.items()
    }
    flaky: dict[tuple[str, str, PortKind], ConnectionAttempt] = {}
    if any(failed.values()):
        again = replies.tries(failed, (yield replies.asks({k: v for k, v in failed.items() if v}, AGAIN_SECONDS)))
        for key, second in again.items():
            if second.outcome == "crawled" or (second.outcome == "ok" and tries[key].outcome != "unresolved"):
                flaky[key] = tries[key]
            tries[key] = _pick_worse_attempt(tries[key], second)
    return MeshResult(
        port=port,
        targets=replies.targets,
        tries=tries,
        taken=replies.taken,
        flaky=flaky,
        resolved=replies.resolved,
        hostnames=replies.hostnames,
        addresses=replies.addresses,
        missing=replies.missing,
        sparse=not all_pairs and len(replies.ports) > ALL_PAIRS_UP_TO,
    )


def get_rendezvous_port(facts: Facts) -> int:
    """The port at which rank 0 will listen, as the first node's env has it."""
    return read_rendezvous_port(facts.cluster.nodes[0].env) if facts.cluster.nodes else RENDEZVOUS_PORT


def read_rendezvous_port(env: Mapping[str, str]) -> int:
    port_text = env.get("MASTER_PORT", "")
    return int(port_text) if port_text.isdecimal() and 0 < int(port_text) < 1 << 16 else RENDEZVOUS_PORT


@dataclass(frozen=True, kw_only=True)
class _Dial:
    """One connection to try: its pair and port, the address, and the bytes to echo."""

    key: tuple[str, str, PortKind]
    host: str
    port: int
    size: int


@dataclass(frozen=True, kw_only=True)
class _Owner:
    """The process that holds a port, as far as the node's user may see it."""

    user: Untrusted
    name: Untrusted = NO_TEXT
    pid: int = 0
    ours: bool = False
    run: Untrusted = NO_TEXT


@dataclass(frozen=True, kw_only=True)
class _Bound:
    """A port on which a node listens, or the error."""

    port: PortNumber = 0
    errno: Word = ""
    owner: _Owner | None = None


@dataclass(frozen=True, kw_only=True)
class ListenReply:
    """The reply to `listen`."""

    ports: tuple[_Bound, ...]
    # Interface, address, and the length of its network's prefix.
    addresses: Annotated[tuple[tuple[Word, IpAddress, int], ...], MaxLength(_MOST)] = ()


@dataclass(frozen=True, kw_only=True)
class _ConnectReply:
    """The reply to `connect`."""

    results: Annotated[tuple[ConnectionAttempt, ...], MaxLength(_MOST)] = ()
    resolved: Annotated[Mapping[str, ResolvedAddresses], MaxLength(_MOST)] = field(default_factory=dict)
    hostname: Untrusted = NO_TEXT


class _MeshReplies:
    """The nodes' replies so far; a node with a malformed reply is missing and doesn't affect the others."""

    def __init__(self, facts: Facts, replies: Replies) -> None:
        self.missing: dict[str, str] = {}
        self.ports: dict[str, dict[PortKind, int]] = {}
        self.taken: dict[str, OccupiedPort] = {}
        self.addresses: dict[str, tuple[InterfaceAddress, ...]] = {}
        self.resolved: dict[str, dict[str, ResolvedAddresses]] = {}
        self.hostnames: dict[str, Untrusted] = {}
        self._contacts = {
            name: c.address for name, c in facts.contacts.items() if isinstance(c, ReachedNode) and c.address
        }
        for name, reply in replies.items():
            if isinstance(reply, Unknown):
                self.missing[name] = reply.why
                continue
            try:
                self._listening(name, reply)
            except ValueError:
                self.missing[name] = "its reply can't be parsed"
        self.targets = {node.name: self._target(node) for node in facts.list_reached() if node.name in self.ports}

    def plan(self, name: str, whom: Sequence[str]) -> Iterator[_Dial]:
        for peer in whom:
            for kind, port in self.ports[peer].items():
                size = LARGE if kind is PortKind.EPHEMERAL else 0
                yield _Dial(key=(name, peer, kind), host=self.targets[peer], port=port, size=size)

    def asks(self, plans: Mapping[str, Sequence[_Dial]], seconds: float) -> dict[str, ProbeRequest]:
        each = seconds + len(self.ports) * SECONDS_PER_NODE
        # Twice, since resolving an unknown name takes time before the connection starts.
        timeout = 2 * each + 1
        return {
            name: ProbeRequest(
                op="connect",
                fields={
                    "targets": [[dial.host, dial.port, dial.size] for dial in plan],
                    "seconds": each,
                    "timeout": timeout,
                },
                within=timeout + 5,
            )
            for name, plan in plans.items()
        }

    def tries(
        self, plans: Mapping[str, Sequence[_Dial]], replies: Replies
    ) -> dict[tuple[str, str, PortKind], ConnectionAttempt]:
        found: dict[tuple[str, str, PortKind], ConnectionAttempt] = {}
        for name, reply in replies.items():
            if isinstance(reply, Unknown):
                self.missing[name] = reply.why
                continue
            try:
                results = decode(_ConnectReply, reply, strict=True).results
                found.update({dial.key: each for dial, each in zip(plans[name], results, strict=True)})
            except ValueError:
                self.missing[name] = "its reply can't be parsed"
        return found

    def learn(self, replies: Replies) -> None:
        """Records how each node resolves the names."""
        for name, reply in replies.items():
            decoded = try_decode(_ConnectReply, reply)
            if decoded is not None:
                self.resolved[name] = {target: _sort_addresses(found) for target, found in decoded.resolved.items()}
                self.hostnames[name] = decoded.hostname

    def by_address(self, dial: _Dial) -> _Dial:
        """The same connection by the address at which the head reached the peer, when its name does not resolve."""
        frm, to, _ = dial.key
        address = self._contacts.get(to)
        if address is None or not isinstance(self.resolved.get(frm, {}).get(dial.host), Untrusted):
            return dial
        return _Dial(key=dial.key, host=address, port=dial.port, size=dial.size)

    def _listening(self, name: str, reply: Mapping[str, Any]) -> None:
        listening = decode(ListenReply, reply)
        self.addresses[name] = tuple(
            InterfaceAddress(interface=interface, address=str(ip_interface(f"{address}/{prefix}")))
            for interface, address, prefix in listening.addresses
        )
        own: dict[PortKind, int] = {}
        for kind, bound in zip(PortKind, listening.ports, strict=True):
            if bound.port:
                own[kind] = bound.port
            else:
                self.taken[name] = _build_occupied_port(bound)
        self.ports[name] = own

    def _target(self, node: Node) -> str:
        """The address for its peers: on the requested network, or its usual name."""
        if node.fabric_address:
            return node.fabric_address
        wanted = [
            at for at in self.addresses[node.name] if at.usable and at.interface in list_requested_interfaces(node)
        ]
        if wanted:
            return wanted[0].host
        if node.transport is not TransportKind.LOCAL:
            return node.target
        # The head is called localhost, or has a name that other nodes don't know.
        own = [at for at in self.addresses[node.name] if at.usable]
        near = [at for at in own if any(is_in_network(peer, at.address) for peer in self._contacts.values())]
        return (near or own)[0].host if own else node.target


def list_requested_interfaces(node: Node) -> tuple[str, ...]:
    """The interfaces that the user's env names for a node, without those that it only excludes."""
    values = [node.env.get(name, "") for name in IFNAMES]
    return tuple(word.lstrip("=") for text in values if not text.startswith("^") for word in text.split(",") if word)


def _build_occupied_port(bound: _Bound) -> OccupiedPort:
    owner = bound.owner
    if owner is None:
        return OccupiedPort(why=bound.errno)
    who = f"{owner.name.raw()} (pid {owner.pid})" if owner.pid else "a process"
    return OccupiedPort(
        why=bound.errno,
        owner=Untrusted(f"{who} of {owner.user.raw()}"),
        pid=owner.pid,
        ours=owner.ours,
        run=owner.run,
    )


def _sort_addresses(found: ResolvedAddresses) -> ResolvedAddresses:
    return found if isinstance(found, Untrusted) else tuple(sorted({str(ip_address(each)) for each in found}))


def _pick_worse_attempt(first: ConnectionAttempt, second: ConnectionAttempt) -> ConnectionAttempt:
    """The second try counts, except that a drop followed by `no route` stays a drop."""
    return first if (first.outcome, second.outcome) == ("dropped", "rejected") else second
