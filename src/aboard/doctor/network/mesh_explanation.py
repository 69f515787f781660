"""Explains a mesh: from the connections that failed to the few nodes or pairs that cause them."""

from collections import defaultdict
from collections.abc import Iterator
from enum import Enum

from aboard.doctor.network.mesh_result import MeshResult, Pair, PortKind
from aboard.lazy_dataclass import dataclass

# A node with one peer explains nothing that the pair doesn't.
MIN_PEERS = 2


class FaultShape(Enum):
    """What a fault has in common."""

    IN = "in"  # nobody can connect to these nodes
    OUT = "out"  # these nodes can connect to nobody
    BOTH = "both"  # neither
    SPLIT = "split"  # groups that only reach their own
    PAIRS = "pairs"


@dataclass(frozen=True, kw_only=True)
class ConnectionFault:
    """One explanation. `scope` says on which ports: every, rendezvous or ephemeral."""

    outcome: str
    scope: str
    shape: FaultShape
    nodes: tuple[str, ...]
    pairs: frozenset[Pair]


def explain_mesh(mesh: MeshResult) -> list[ConnectionFault]:
    """The explanations of all failures except unresolved names, which have their own diagnosis."""
    order = {name: at for at, name in enumerate(mesh.targets)}
    tried = {(frm, to) for frm, to, _ in mesh.tries}
    failures = _group_failures(mesh)
    failed = set().union(*failures.values())
    # A pair that fails with another outcome is no evidence for or against this one.
    found = [
        ConnectionFault(
            outcome=outcome, scope=scope, shape=shape, nodes=tuple(sorted(nodes, key=order.__getitem__)), pairs=pairs
        )
        for (outcome, scope), bad in failures.items()
        for shape, nodes, pairs in explain_pairs(bad, tried - (failed - bad))
    ]
    deaf = {name for fault in found if fault.shape in (FaultShape.IN, FaultShape.BOTH) for name in fault.nodes}
    mute = {name for fault in found if fault.shape in (FaultShape.OUT, FaultShape.BOTH) for name in fault.nodes}
    # Where two faults meet, a pair may look like a third one.
    return [
        fault
        for fault in found
        if fault.shape is not FaultShape.PAIRS or not all(to in deaf or frm in mute for frm, to in fault.pairs)
    ]


def explain_pairs(bad: set[Pair], tried: set[Pair]) -> Iterator[tuple[FaultShape, frozenset[str], frozenset[Pair]]]:
    """The fewest nodes whose connections all failed; then groups; then the remaining pairs."""
    nodes = {name for pair in tried for name in pair}
    if bad == tried and len(nodes) > MIN_PEERS:
        yield FaultShape.IN, frozenset(nodes), frozenset(bad)
        return
    blamed: dict[FaultShape, set[str]] = defaultdict(set)
    covered: dict[FaultShape, set[Pair]] = defaultdict(set)
    unexplained = set(bad)
    suspects = list(_list_suspects(bad, tried))
    while suspects:
        shape, node, pairs = max(suspects, key=lambda each: len(each[2] & unexplained))
        if len(pairs & unexplained) < MIN_PEERS:
            break
        blamed[shape].add(node)
        covered[shape] |= pairs
        unexplained -= pairs
    for shape, names in blamed.items():
        yield shape, frozenset(names), frozenset(covered[shape])
    good = tried - bad
    groups = _find_connected_groups(good, nodes - set().union(*blamed.values()))
    crossing = {(frm, to) for frm, to in unexplained if groups.get(frm) != groups.get(to)}
    if crossing and crossing == unexplained and min(map(len, set(groups.values()))) >= MIN_PEERS:
        yield FaultShape.SPLIT, frozenset(groups), frozenset(crossing)
        return
    for bundle in _bundle_pairs(unexplained):
        yield FaultShape.PAIRS, frozenset(name for pair in bundle for name in pair), bundle


def _group_failures(mesh: MeshResult) -> dict[tuple[str, str], set[Pair]]:
    """The failed pairs by outcome and ports."""
    found: dict[tuple[str, str], set[Pair]] = defaultdict(set)
    for frm, to in dict.fromkeys((frm, to) for frm, to, _ in mesh.tries):
        by_port = {port: mesh.tries[frm, to, port].outcome for port in PortKind if (frm, to, port) in mesh.tries}
        outcomes = set(by_port.values())
        for port, outcome in by_port.items():
            if outcome not in ("ok", "unresolved", "untried", "crawled"):
                # An outcome on the only tested port, or the same on both, isn't specific to a port.
                every = len(outcomes) == 1 or outcome in ("stalled", "silent", "reset")
                found[outcome, "every" if every else port.value].add((frm, to))
    return found


def _list_suspects(bad: set[Pair], tried: set[Pair]) -> Iterator[tuple[FaultShape, str, set[Pair]]]:
    """Nodes of which every connection failed, in one direction or in both; the first one wins a tie."""
    incoming: dict[str, set[Pair]] = defaultdict(set)
    outgoing: dict[str, set[Pair]] = defaultdict(set)
    for frm, to in tried:
        incoming[to].add((frm, to))
        outgoing[frm].add((frm, to))
    deaf = [name for name in sorted(incoming) if len(incoming[name]) >= MIN_PEERS and incoming[name] <= bad]
    mute = [name for name in sorted(outgoing) if len(outgoing[name]) >= MIN_PEERS and outgoing[name] <= bad]
    yield from ((FaultShape.BOTH, name, incoming[name] | outgoing[name]) for name in deaf if name in mute)
    yield from ((FaultShape.IN, name, incoming[name]) for name in deaf)
    yield from ((FaultShape.OUT, name, outgoing[name]) for name in mute)


def _find_connected_groups(good: set[Pair], nodes: set[str]) -> dict[str, frozenset[str]]:
    """Each node with all that it reaches over connections that work."""
    near: dict[str, set[str]] = {name: set() for name in nodes}
    for frm, to in good:
        if frm in near and to in near:
            near[frm].add(to)
            near[to].add(frm)
    groups: dict[str, frozenset[str]] = {}
    for name in nodes:
        if name not in groups:
            found, ahead = {name}, [name]
            while ahead:
                new = near[ahead.pop()] - found
                found |= new
                ahead.extend(new)
            groups.update(dict.fromkeys(found, frozenset(found)))
    return groups


def _bundle_pairs(unexplained: set[Pair]) -> Iterator[frozenset[Pair]]:
    """The remaining pairs, grouped by their most frequent node; both directions of a pair are one."""
    while unexplained:
        ends = sorted(unexplained)
        counts = {name: sum(name in pair for pair in ends) for pair in ends for name in pair}
        common = max(sorted(counts), key=counts.__getitem__)
        bundle = frozenset(pair for pair in ends if common in pair)
        yield bundle
        unexplained = unexplained - bundle
