"""What to say of connections that fail, and what to type: one sentence and a few commands for each way."""

from collections.abc import Sequence
from ipaddress import ip_address, ip_interface

from aboard.checks.listed import SHOWN, listed
from aboard.checks.network.fold import Blame, Shape
from aboard.checks.network.mesh import Mesh, Port
from aboard.core.nodeset import fold_quoted
from aboard.diagnoses import Diagnosis, Fix, join_fixes, network

# By the ports that it is about, and how it looks.
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
HOW = {
    "dropped": "nothing comes back: the packets are dropped",
    "refused": "they are refused, although our agent listens there",
    "rejected": "they are rejected: no route to host",
    "reset": "they are made and then reset",
    "silent": "they are made, and then not a byte comes back",
    "stalled": "small messages pass, 64 KiB do not come back",
}
PORTS = {"every": "any port", "rendezvous": "the rendezvous port {port}", "ephemeral": "ephemeral ports"}
_PREPOSITIONS = {Shape.IN: "to", Shape.OUT: "from", Shape.BOTH: "to and from"}
_ALL_PORTS = "1024:65535"


def seen(mesh: Mesh, blame: Blame) -> str:
    """Who can't connect to whom, on which ports, and how it looks."""
    ports = PORTS[blame.scope].format(port=mesh.port)
    only = "" if blame.scope == "every" else " (others work)"
    many = len(blame.nodes) > 1
    names = listed(blame.nodes) if many else f"{blame.nodes[0]} ({address(mesh, blame.nodes[0])})"
    peers = len({name for pair in blame.pairs for name in pair} - set(blame.nodes))
    whom = "each other" if not peers else f"any of {peers} peers" if peers > 1 else "the other"
    if blame.outcome == "stalled" and blame.shape in (Shape.IN, Shape.OUT, Shape.BOTH):
        who = f"large messages {_PREPOSITIONS[blame.shape]} {names} vanish"
    elif blame.shape is Shape.IN:
        who = f"{names} accept{'' if many else 's'} nothing from {whom} on {ports}{only}"
    elif blame.shape is Shape.OUT:
        who = f"{names} cannot connect to {whom} on {ports}{only}"
    elif blame.shape is Shape.BOTH:
        who = f"{names} {'are' if many else 'is'} cut off: no connection to or from {whom} on {ports}{only}"
    elif blame.shape is Shape.SPLIT:
        who = f"the cluster is in {len(_groups(blame))} parts that don't reach each other on {ports}{only}: " + (
            " | ".join(listed(group) for group in _groups(blame))
        )
    else:
        who = f"{arrows(blame)} fail{'' if len(blame.pairs) > 1 else 's'} on {ports}{only}"
    return f"{who}; {HOW[blame.outcome]}{_said(mesh, blame)}"


def arrows(blame: Blame) -> str:
    """The pairs as n1 → n2, and those that fail both ways as n1 ↔ n2."""
    done, words = set(), []
    for frm, to in sorted(blame.pairs):
        if (frm, to) not in done:
            both = (to, frm) in blame.pairs
            words.append(f"{frm} {'↔' if both else '→'} {to}")
            done |= {(frm, to), (to, frm)}
    return listed(words)


def fix(diagnosis: Diagnosis, mesh: Mesh, blame: Blame) -> Fix:
    """Lines to type, on the right nodes."""
    if blame.outcome == "stalled":
        return _fix_size(mesh, blame)
    ends = {"in": [to for _, to in blame.pairs], "out": [frm for frm, _ in blame.pairs]}
    ways = ["out"] if blame.shape is Shape.OUT else ["in", "out"] if blame.shape is Shape.BOTH else ["in"]
    steps = []
    for way in ways:
        here = sorted(set(blame.nodes) if blame.shape in (Shape.IN, Shape.OUT, Shape.BOTH) else set(ends[way]))
        others = sorted({name for pair in blame.pairs for name in pair} - set(here)) or here
        net, ports = _network(mesh, others), _span(mesh, blame)
        steps.append(diagnosis.fix(way, net=net, ports=ports, where=fold_quoted(here)))
    if blame.outcome != "dropped":
        steps.insert(0, diagnosis.fix("look", where=fold_quoted(_at(blame))))
    elif blame.shape in (Shape.PAIRS, Shape.BOTH, Shape.SPLIT):
        frm, to = min(blame.pairs)
        steps.append(diagnosis.fix("route", address=address(mesh, to), node=frm))
    return join_fixes(*steps)


def address(mesh: Mesh, node: str) -> str:
    """Where peers connect to a node, as an address if one is known."""
    remotes = [each.remote for (_, to, _), each in mesh.tries.items() if to == node and each.remote]
    return max(sorted(set(remotes)), key=remotes.count) if remotes else mesh.targets.get(node, node)


def _at(blame: Blame) -> list[str]:
    if blame.shape in (Shape.PAIRS, Shape.SPLIT):
        return sorted({to for _, to in blame.pairs})
    return list(blame.nodes)


def _groups(blame: Blame) -> list[tuple[str, ...]]:
    """The parts of a split: those that no failing pair leads between."""
    cut = {frozenset(pair) for pair in blame.pairs}
    parts: list[list[str]] = []
    for name in blame.nodes:
        home = next((part for part in parts if not any(frozenset((name, other)) in cut for other in part)), None)
        if home is None:
            parts.append([name])
        else:
            home.append(name)
    return [tuple(part) for part in parts]


def _said(mesh: Mesh, blame: Blame) -> str:
    """How long it was waited, where waiting was the answer."""
    waits = [each.seconds for (frm, to, _), each in mesh.tries.items() if (frm, to) in blame.pairs]
    return f" (waited {max(waits):.1f} s)" if blame.outcome in ("dropped", "stalled", "silent") and waits else ""


def _span(mesh: Mesh, blame: Blame) -> str:
    return str(mesh.port) if blame.scope == Port.RENDEZVOUS.value else _ALL_PORTS


def _network(mesh: Mesh, others: Sequence[str]) -> str:
    """The network that has all these nodes if one of theirs does, else their addresses."""
    places = [address(mesh, name) for name in others]
    for name in others:
        for own in mesh.addresses.get(name, ()):
            if own.usable and all(_in(place, own.address) for place in places):
                return str(ip_interface(own.address).network) if len(places) > 1 else places[0]
    return ",".join(sorted(places)[:SHOWN])


def _in(place: str, network: str) -> bool:
    try:
        return ip_address(place) in ip_interface(network).network
    except ValueError:
        return False


def _fix_size(mesh: Mesh, blame: Blame) -> Fix:
    here = _at(blame)
    card = next((name for name in (mesh.interface(node, address(mesh, node)) for node in here) if name), "eth0")
    peer = next((name for pair in sorted(blame.pairs) for name in pair if name not in here), here[0])
    return network.MTU.fix(address=address(mesh, peer), interface=card, where=fold_quoted(here))
