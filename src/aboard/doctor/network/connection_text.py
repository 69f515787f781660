"""The sentence and the fix for each kind of connection failure."""

from collections.abc import Sequence
from ipaddress import ip_interface

from aboard.core.cluster.node_sets import quote_folded_names
from aboard.core.text.input_text import MAX_LISTED, format_list
from aboard.diagnoses import Diagnosis, Fix, join_fixes
from aboard.doctor.network import diagnoses as network
from aboard.doctor.network.mesh_explanation import ConnectionFault, FaultShape
from aboard.doctor.network.mesh_result import MeshResult, PortKind, is_in_network

# By the ports concerned and the outcome.
DIAGNOSES = {
    ("every", "dropped"): network.DROPPED,
    ("every", "refused"): network.REFUSED,
    ("every", "rejected"): network.REJECTED,
    ("rendezvous", "dropped"): network.RENDEZVOUS_DROPPED,
    ("rendezvous", "refused"): network.RENDEZVOUS_REFUSED,
    ("rendezvous", "rejected"): network.RENDEZVOUS_REJECTED,
    ("ephemeral", "dropped"): network.EPHEMERAL_DROPPED,
    ("ephemeral", "refused"): network.EPHEMERAL_REFUSED,
    ("ephemeral", "rejected"): network.EPHEMERAL_REJECTED,
    ("every", "reset"): network.RESET,
    ("every", "silent"): network.SILENT,
    ("every", "stalled"): network.MTU,
}
OUTCOME_TEXTS = {
    "dropped": "no reply: packets are dropped",
    "refused": "connections are refused although Aboard's agent listens there",
    "rejected": "connections are rejected: no route to host",
    "reset": "connections open and are then reset",
    "silent": "connections open, but no byte comes back",
    "stalled": "small messages pass, but 64 KiB messages do not come back",
}
PORT_TEXTS = {PortKind.RENDEZVOUS: "the rendezvous port {port}", PortKind.EPHEMERAL: "ephemeral ports"}
_PREPOSITIONS = {FaultShape.IN: "to", FaultShape.OUT: "from", FaultShape.BOTH: "to and from"}
_ALL_PORTS = "1024:65535"


def describe_fault(mesh: MeshResult, fault: ConnectionFault) -> str:
    """Which nodes can't connect to which, on which ports, and with what outcome."""
    tried = [port for port in PortKind if any((*pair, port) in mesh.tries for pair in fault.pairs)]
    kinds = tried if fault.scope == "every" else [PortKind(fault.scope)]
    ports = " and ".join(PORT_TEXTS[kind] for kind in kinds).format(port=mesh.port)
    only = "" if fault.scope == "every" else " (other ports work)"
    many = len(fault.nodes) > 1
    names = format_list(fault.nodes) if many else f"{fault.nodes[0]} ({find_node_address(mesh, fault.nodes[0])})"
    peers = len({name for pair in fault.pairs for name in pair} - set(fault.nodes))
    whom = "each other" if not peers else f"any of {peers} peers" if peers > 1 else "the other node"
    if fault.outcome == "stalled" and fault.shape in (FaultShape.IN, FaultShape.OUT, FaultShape.BOTH):
        who = f"large messages {_PREPOSITIONS[fault.shape]} {names} are lost"
    elif fault.shape is FaultShape.IN:
        who = f"{names} accept{'' if many else 's'} no connection from {whom} on {ports}{only}"
    elif fault.shape is FaultShape.OUT:
        who = f"{names} cannot connect to {whom} on {ports}{only}"
    elif fault.shape is FaultShape.BOTH:
        who = f"{names} {'are' if many else 'is'} cut off: no connection to or from {whom} on {ports}{only}"
    elif fault.shape is FaultShape.SPLIT:
        who = (
            f"the cluster is split into {len(_list_partitions(fault))} parts that can't reach each other on"
            f" {ports}{only}: " + (" | ".join(format_list(group) for group in _list_partitions(fault)))
        )
    else:
        who = f"{format_pairs(fault)} fail{'' if len(fault.pairs) > 1 else 's'} on {ports}{only}"
    return f"{who}; {OUTCOME_TEXTS[fault.outcome]}{_format_wait(mesh, fault)}"


def format_pairs(fault: ConnectionFault) -> str:
    """The pairs as n1 → n2, and those that fail both ways as n1 ↔ n2."""
    done, words = set(), []
    for frm, to in sorted(fault.pairs):
        if (frm, to) not in done:
            both = (to, frm) in fault.pairs
            words.append(f"{frm} {'↔' if both else '→'} {to}")
            done |= {(frm, to), (to, frm)}
    return format_list(words)


def build_fix(diagnosis: Diagnosis, mesh: MeshResult, fault: ConnectionFault) -> Fix:
    """The commands, on the right nodes."""
    if fault.outcome == "stalled":
        return _build_mtu_fix(mesh, fault)
    ends = {"in": [to for _, to in fault.pairs], "out": [frm for frm, _ in fault.pairs]}
    ways = ["out"] if fault.shape is FaultShape.OUT else ["in", "out"] if fault.shape is FaultShape.BOTH else ["in"]
    ports, steps = str(mesh.port) if fault.scope == PortKind.RENDEZVOUS.value else _ALL_PORTS, []
    for way in ways:
        here = sorted(
            set(fault.nodes) if fault.shape in (FaultShape.IN, FaultShape.OUT, FaultShape.BOTH) else set(ends[way])
        )
        others = sorted({name for pair in fault.pairs for name in pair} - set(here)) or here
        net, where = _find_network(mesh, others), quote_folded_names(here)
        steps.append(diagnosis.fix(way, net=net, ports=ports, where=where))
    if fault.outcome != "dropped":
        steps.insert(0, diagnosis.fix("look", where=quote_folded_names(_list_fix_nodes(fault))))
    elif fault.shape in (FaultShape.PAIRS, FaultShape.BOTH, FaultShape.SPLIT):
        frm, to = min(fault.pairs)
        steps.append(diagnosis.fix("route", address=find_node_address(mesh, to), node=frm))
    return join_fixes(*steps)


def find_node_address(mesh: MeshResult, node: str) -> str:
    """The address at which peers connect to a node, or its target where none is known."""
    remotes = [each.remote for (_, to, _), each in mesh.tries.items() if to == node and each.remote]
    return max(sorted(set(remotes)), key=remotes.count) if remotes else mesh.targets.get(node, node)


def _list_fix_nodes(fault: ConnectionFault) -> list[str]:
    if fault.shape in (FaultShape.PAIRS, FaultShape.SPLIT):
        return sorted({to for _, to in fault.pairs})
    return list(fault.nodes)


def _list_partitions(fault: ConnectionFault) -> list[tuple[str, ...]]:
    """The parts of a split: groups without a failing pair inside."""
    cut = {frozenset(pair) for pair in fault.pairs}
    parts: list[list[str]] = []
    for name in fault.nodes:
        home = next((part for part in parts if not any(frozenset((name, other)) in cut for other in part)), None)
        if home is None:
            parts.append([name])
        else:
            home.append(name)
    return [tuple(part) for part in parts]


def _format_wait(mesh: MeshResult, fault: ConnectionFault) -> str:
    """How long the attempt waited, for outcomes that are timeouts."""
    waits = [each.seconds for (frm, to, _), each in mesh.tries.items() if (frm, to) in fault.pairs]
    return f" (waited {max(waits):.1f} s)" if fault.outcome in ("dropped", "stalled", "silent") and waits else ""


def _find_network(mesh: MeshResult, others: Sequence[str]) -> str:
    """The network that contains all these nodes, or their addresses where none does."""
    places = [find_node_address(mesh, name) for name in others]
    for name in others:
        for own in mesh.addresses.get(name, ()):
            if own.usable and all(is_in_network(place, own.address) for place in places):
                return str(ip_interface(own.address).network) if len(places) > 1 else places[0]
    return ",".join(sorted(places)[:MAX_LISTED])


def _build_mtu_fix(mesh: MeshResult, fault: ConnectionFault) -> Fix:
    here = _list_fix_nodes(fault)
    interface = next(
        (name for name in (mesh.interface(node, find_node_address(mesh, node)) for node in here) if name), "eth0"
    )
    peer = next((name for pair in sorted(fault.pairs) for name in pair if name not in here), here[0])
    return network.MTU.fix(address=find_node_address(mesh, peer), interface=interface, where=quote_folded_names(here))
