"""Folds a mesh: from who could not connect to whom, to the few nodes or pairs that explain it."""

from collections import defaultdict
from collections.abc import Iterator
from enum import Enum

from aboard.checks.network.mesh import Mesh, Pair, Port
from aboard.lazy import dataclass

# A node with one peer explains nothing that the pair doesn't.
FEWEST = 2


class Shape(Enum):
    """How failures are explained."""

    IN = "in"  # nobody can connect to these nodes
    OUT = "out"  # these nodes can connect to nobody
    BOTH = "both"  # neither
    SPLIT = "split"  # groups that only reach their own
    PAIRS = "pairs"


@dataclass(frozen=True, kw_only=True)
class Blame:
    """One explanation. `scope` says on which ports: every, rendezvous or ephemeral."""

    outcome: str
    scope: str
    shape: Shape
    nodes: tuple[str, ...]
    pairs: frozenset[Pair]


def fold(mesh: Mesh) -> list[Blame]:
    """The explanations of all failures but unresolved names, which have a story of their own."""
    order = {name: at for at, name in enumerate(mesh.targets)}
    tried = {(frm, to) for frm, to, _ in mesh.tries}
    failures = _failures(mesh)
    failed = set().union(*failures.values())
    # A pair that fails in another way says nothing for or against this one.
    found = [
        Blame(outcome=outcome, scope=scope, shape=shape, nodes=tuple(sorted(nodes, key=order.__getitem__)), pairs=pairs)
        for (outcome, scope), bad in failures.items()
        for shape, nodes, pairs in explain(bad, tried - (failed - bad))
    ]
    deaf = {name for blame in found if blame.shape in (Shape.IN, Shape.BOTH) for name in blame.nodes}
    mute = {name for blame in found if blame.shape in (Shape.OUT, Shape.BOTH) for name in blame.nodes}
    # Where two faults meet, a pair may look like a third one.
    return [
        blame
        for blame in found
        if blame.shape is not Shape.PAIRS or not all(to in deaf or frm in mute for frm, to in blame.pairs)
    ]


def explain(bad: set[Pair], tried: set[Pair]) -> Iterator[tuple[Shape, frozenset[str], frozenset[Pair]]]:
    """The fewest nodes of which all connections failed; then groups; then what is left, pair by pair."""
    nodes = {name for pair in tried for name in pair}
    if bad == tried and len(nodes) > FEWEST:
        yield Shape.IN, frozenset(nodes), frozenset(bad)
        return
    blamed: dict[Shape, set[str]] = defaultdict(set)
    covered: dict[Shape, set[Pair]] = defaultdict(set)
    left = set(bad)
    suspects = list(_suspects(bad, tried))
    while suspects:
        shape, node, pairs = max(suspects, key=lambda each: len(each[2] & left))
        if len(pairs & left) < FEWEST:
            break
        blamed[shape].add(node)
        covered[shape] |= pairs
        left -= pairs
    for shape, names in blamed.items():
        yield shape, frozenset(names), frozenset(covered[shape])
    good = tried - bad
    groups = _groups(good, nodes - set().union(*blamed.values()))
    crossing = {(frm, to) for frm, to in left if groups.get(frm) != groups.get(to)}
    if crossing and crossing == left and min(map(len, set(groups.values()))) >= FEWEST:
        yield Shape.SPLIT, frozenset(groups), frozenset(crossing)
        return
    for bundle in _bundles(left):
        yield Shape.PAIRS, frozenset(name for pair in bundle for name in pair), bundle


def _failures(mesh: Mesh) -> dict[tuple[str, str], set[Pair]]:
    """The pairs that failed, by outcome and by the ports that it was on."""
    found: dict[tuple[str, str], set[Pair]] = defaultdict(set)
    for frm, to in dict.fromkeys((frm, to) for frm, to, _ in mesh.tries):
        by_port = {port: mesh.tries[frm, to, port].outcome for port in Port if (frm, to, port) in mesh.tries}
        outcomes = set(by_port.values())
        for port, outcome in by_port.items():
            if outcome not in ("ok", "unresolved", "untried", "crawled"):
                # What is only tried on one port, or is the same on both, isn't about the port.
                every = len(outcomes) == 1 or outcome in ("stalled", "silent", "reset")
                found[outcome, "every" if every else port.value].add((frm, to))
    return found


def _suspects(bad: set[Pair], tried: set[Pair]) -> Iterator[tuple[Shape, str, set[Pair]]]:
    """Nodes of which every connection failed, in one direction or in both; the first one wins a tie."""
    came: dict[str, set[Pair]] = defaultdict(set)
    went: dict[str, set[Pair]] = defaultdict(set)
    for frm, to in tried:
        came[to].add((frm, to))
        went[frm].add((frm, to))
    deaf = [name for name in sorted(came) if len(came[name]) >= FEWEST and came[name] <= bad]
    mute = [name for name in sorted(went) if len(went[name]) >= FEWEST and went[name] <= bad]
    yield from ((Shape.BOTH, name, came[name] | went[name]) for name in deaf if name in mute)
    yield from ((Shape.IN, name, came[name]) for name in deaf)
    yield from ((Shape.OUT, name, went[name]) for name in mute)


def _groups(good: set[Pair], nodes: set[str]) -> dict[str, frozenset[str]]:
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


def _bundles(left: set[Pair]) -> Iterator[frozenset[Pair]]:
    """What is left, bundled by the node that most of it has in common; two ways of one pair are one."""
    while left:
        ends = sorted(left)
        counts = {name: sum(name in pair for pair in ends) for pair in ends for name in pair}
        common = max(sorted(counts), key=counts.__getitem__)
        bundle = frozenset(pair for pair in ends if common in pair)
        yield bundle
        left = left - bundle
