"""Network: who can connect to whom, on which ports, with packets of which size, and over which interface."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from aboard.checks.blanks import named
from aboard.checks.listed import listed
from aboard.checks.network.exercise import MESH, mesh
from aboard.checks.network.fold import Shape, fold
from aboard.checks.network.interfaces import INTERFACES, chosen, interface_missing, link_down
from aboard.checks.network.mesh import Mesh
from aboard.checks.network.mtu import mtu_differs
from aboard.checks.network.names import names_differ, peer_on_loopback, unresolved
from aboard.checks.network.rates import RATES, bad_links
from aboard.checks.network.words import DIAGNOSES, fix, seen
from aboard.checks.unknown import unknown_facts, unknown_stories
from aboard.core.facts import Facts, Unknown
from aboard.core.rule import Subject
from aboard.diagnoses import Finding, Severity, network
from aboard.diagnoses.catalogue import diagnoses_in


def connections(facts: Facts) -> Iterator[Finding]:
    """Connections that fail, folded to the nodes that explain them."""
    outcome = facts.outcome(MESH)
    if not isinstance(outcome, Mesh):
        return
    for blame in fold(outcome):
        diagnosis, nodes = DIAGNOSES[blame.scope, blame.outcome], blame.nodes
        if blame.shape is Shape.PAIRS:
            # Who doesn't accept comes first: that is where the fix is typed.
            nodes = tuple(dict.fromkeys([to for _, to in sorted(blame.pairs)] + list(nodes)))
        yield diagnosis.finding(nodes=nodes, seen=seen(outcome, blame), fix=fix(diagnosis, outcome, blame))


def port_taken(facts: Facts) -> Iterator[Finding]:
    """A rendezvous port that somebody has: rank 0 can't listen on it."""
    outcome = facts.outcome(MESH)
    if not isinstance(outcome, Mesh):
        return
    first = facts.cluster.nodes[0]
    for node, taken in outcome.taken.items():
        if taken.ours and any(outcome.addresses[node] == outcome.addresses[name] for name in _others(outcome, node)):
            # Two names of one machine: its other agent has the port.
            continue
        # Only who named the port can't do with another: `aboard launch` finds one, beside another run of its own too.
        severity = Severity.BLOCK if node == first.name and "MASTER_PORT" in first.env else Severity.WARN
        who = "another `aboard check`" if taken.ours else taken.owner.visible() or "a process of another user"
        yield network.PORT_TAKEN.finding(
            severity=Severity.INFO if taken.ours else severity,
            nodes=(node,),
            seen=f"port {outcome.port} on {node} is taken ({taken.why}) by {who}",
            why="Rank 0 listens on this port of the first node. `aboard launch` takes another one by itself, unless"
            " MASTER_PORT names this one; other launchers don't. A leftover of an earlier run often has it.",
            fix=network.PORT_TAKEN.fix(port=outcome.port, node=node),
            about=(f"pid {taken.pid}",) if taken.pid else (),
        )


def flaky(facts: Facts) -> Iterator[Finding]:
    """Connections that failed and worked when tried again: packets are being lost."""
    outcome = facts.outcome(MESH)
    if not isinstance(outcome, Mesh) or not outcome.flaky:
        return
    pairs = sorted({(frm, to) for frm, to, _ in outcome.flaky})
    counts = {name: sum(name in pair for pair in pairs) for pair in pairs for name in pair}
    common = tuple(name for name, count in counts.items() if count == len(pairs)) or tuple(counts)
    yield network.FLAKY.finding(
        nodes=common if len(pairs) > 1 else pairs[0],
        seen=f"{listed([f'{frm} → {to}' for frm, to in pairs])} failed at first"
        f" ({listed(sorted({each.outcome for each in outcome.flaky.values()}))}) and did better then",
        fix=network.FLAKY.fix(nodes=named(common)),
    )


def sparse(facts: Facts) -> Iterator[Finding]:
    """A mesh that isn't complete says so."""
    outcome = facts.outcome(MESH)
    if isinstance(outcome, Mesh) and outcome.sparse:
        each = len(outcome.tries) // 2 // max(1, len(outcome.targets))
        yield network.SPARSE.finding(
            nodes=(),
            seen=f"each of {len(outcome.targets)} nodes tried {each} of its peers; a single bad pair may be missed",
            fix=network.SPARSE.fix(),
        )


def not_held(facts: Facts) -> Iterator[Finding]:
    """A node that took no part is said, never passed over."""
    outcome = facts.outcome(MESH)
    missing: Mapping[str, str] = {}
    if isinstance(outcome, Unknown):
        missing = {node.name: outcome.why for node in facts.reached()}
    elif outcome is not None:
        missing = outcome.missing
    if missing:
        yield network.UNKNOWN_MESH.finding(
            nodes=tuple(missing),
            seen=f"connections of {listed(list(missing))} stayed unknown: {next(iter(missing.values()))}",
            fix=network.UNKNOWN_MESH.fix(),
        )


def _others(outcome: Mesh, node: str) -> list[str]:
    return [name for name in outcome.addresses if name != node]


def without_peer(facts: Facts) -> dict[str, str]:
    """A node that is alone, or the only one that answers, connects to nobody."""
    reached = facts.reached()
    why = "there is only one node" if len(facts.cluster) == 1 else "only one node answers"
    return {node.name: why for node in reached} if len(reached) == 1 else {}


SUBJECT = Subject(
    name="network",
    title="every node reaches every other",
    probes=(INTERFACES,),
    exercises=(MESH, RATES),
    rules=(
        link_down,
        connections,
        unresolved,
        peer_on_loopback,
        names_differ,
        port_taken,
        interface_missing,
        mtu_differs,
        chosen,
        flaky,
        bad_links,
        sparse,
        not_held,
        unknown_facts(INTERFACES),
    ),
    stories=(*diagnoses_in(network), *unknown_stories((INTERFACES,))),
    untested=without_peer,
)


def subject(*, all_pairs: bool = False) -> Subject:
    """The subject; `all_pairs` tries each pair however many nodes there are."""
    return replace(SUBJECT, exercises=(mesh(all_pairs=all_pairs), RATES))
