"""Network: which nodes can connect to which, on which ports, with which packet sizes, over which interface."""

from collections.abc import Iterator
from dataclasses import replace

from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.run.run_state import name_run
from aboard.core.text.input_text import format_list
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.catalogue import list_diagnoses
from aboard.doctor.host.leftovers import list_active_runs
from aboard.doctor.network import diagnoses as network, interfaces
from aboard.doctor.network.connection_text import DIAGNOSES, build_fix, describe_fault
from aboard.doctor.network.link_rates import RATES, find_bad_links
from aboard.doctor.network.mesh_explanation import FaultShape, explain_mesh
from aboard.doctor.network.mesh_probe import MESH, build_mesh_probe, get_mesh
from aboard.doctor.network.mesh_result import OccupiedPort
from aboard.doctor.network.name_resolution import find_differing_names, find_loopback_peers, find_unresolved_names
from aboard.doctor.shared.fix_values import join_quoted_names
from aboard.doctor.shared.unknown_answers import list_unknown_diagnoses, make_unknown_rule


def find_connection_failures(facts: Facts) -> Iterator[Finding]:
    """Failed connections, grouped by the nodes that explain them."""
    outcome = get_mesh(facts)
    for fault in explain_mesh(outcome):
        diagnosis, nodes = DIAGNOSES[fault.scope, fault.outcome], fault.nodes
        if fault.shape is FaultShape.PAIRS:
            # The node that doesn't accept comes first: the fix is for it.
            nodes = tuple(dict.fromkeys([to for _, to in sorted(fault.pairs)] + list(nodes)))
        yield diagnosis.finding(
            nodes=nodes, seen=describe_fault(outcome, fault), fix=build_fix(diagnosis, outcome, fault)
        )


def find_occupied_port(facts: Facts) -> Iterator[Finding]:
    """A rendezvous port in use: rank 0 can't listen on it."""
    outcome = get_mesh(facts)
    for node, occupied in outcome.taken.items():
        first = facts.cluster.nodes[0]
        if occupied.ours and any(
            own == outcome.addresses[node] for name, own in outcome.addresses.items() if name != node
        ):
            # Two names of one machine: its other agent holds the port.
            continue
        # `aboard launch` picks a free port unless MASTER_PORT names one.
        severity = Severity.BLOCK if node == first.name and "MASTER_PORT" in first.env else Severity.WARN
        if run := _find_active_run(facts, node, occupied):
            yield _build_run_finding(node, outcome.port, run, severity)
            continue
        who = "another `aboard check`" if occupied.ours else occupied.owner.visible() or "a different user's process"
        yield network.PORT_TAKEN.finding(
            severity=Severity.INFO if occupied.ours else severity,
            nodes=(node,),
            seen=f"port {outcome.port} on {node} is in use ({occupied.why}) by {who}",
            why="Rank 0 listens on this port on the first node. `aboard launch` picks a different port unless"
            " MASTER_PORT is set to this one; other launchers don't. Often a leftover process from an earlier run holds"
            " the port.",
            fix=network.PORT_TAKEN.fix("holder", port=outcome.port, node=node),
            about=(f"pid {occupied.pid}",) if occupied.pid else (),
        )


def _find_active_run(facts: Facts, node: str, occupied: OccupiedPort) -> str:
    """The active run that has the port; a supervisor reserves it in a way that hides its owner."""
    if occupied.run:
        return name_run(occupied.run)
    active = list_active_runs(facts, node)
    return active[0].name if len(active) == 1 and not occupied.owner and not occupied.ours else ""


def _build_run_finding(node: str, port: int, run: str, severity: Severity) -> Finding:
    """The user's own healthy run is no leftover: nothing but `aboard stop` should end it."""
    blocks = severity is Severity.BLOCK
    return network.PORT_TAKEN.finding(
        severity=severity if blocks else Severity.INFO,
        nodes=(node,),
        seen=f"port {port} on {node} is in use by run {run}, which is active",
        why="MASTER_PORT is set to this port, so rank 0 can't listen on another one."
        if blocks
        else "`aboard launch` picks a different port for this run.",
        fix=network.PORT_TAKEN.fix("run", run=run),
    )


def find_flaky_connections(facts: Facts) -> Iterator[Finding]:
    """Connections that failed and worked on the retry: packets are being lost."""
    outcome = get_mesh(facts)
    if not outcome.flaky:
        return
    pairs = sorted({(frm, to) for frm, to, _ in outcome.flaky})
    counts = {name: sum(name in pair for pair in pairs) for pair in pairs for name in pair}
    common = tuple(name for name, count in counts.items() if count == len(pairs)) or tuple(counts)
    yield network.FLAKY.finding(
        nodes=common if len(pairs) > 1 else pairs[0],
        seen=f"{format_list([f'{frm} → {to}' for frm, to in pairs])} failed on the first try"
        f" ({format_list(sorted({each.outcome for each in outcome.flaky.values()}))}) and connected on the retry",
        fix=network.FLAKY.fix(nodes=join_quoted_names(common)),
    )


def report_sparse_mesh(facts: Facts) -> Iterator[Finding]:
    """Reports that not every pair was tested."""
    outcome = get_mesh(facts)
    if outcome.sparse:
        each = len(outcome.tries) // 2 // max(1, len(outcome.targets))
        yield network.SPARSE.finding(
            nodes=(),
            seen=f"each of {len(outcome.targets)} nodes tested {each} of its peers, so a single bad pair may be missed",
            fix=network.SPARSE.fix(),
        )


def find_unknown_connections(facts: Facts) -> Iterator[Finding]:
    """Reports nodes whose connections were not tested."""
    outcome = MESH.outcome(facts)
    missing = get_mesh(facts).missing
    if isinstance(outcome, Unknown):
        missing = {node.name: outcome.why for node in facts.list_reached()}
    if missing:
        yield network.UNKNOWN_MESH.finding(
            nodes=tuple(missing),
            seen=f"could not test the connections of {format_list(list(missing))}: {next(iter(missing.values()))}",
            fix=network.UNKNOWN_MESH.fix(),
        )


def list_nodes_without_peer(facts: Facts) -> dict[str, str]:
    """A single reachable node has no peer to connect to."""
    reached = facts.list_reached()
    why = "there is only one node" if len(facts.cluster) == 1 else "only one node responds"
    return {node.name: why for node in reached} if len(reached) == 1 else {}


SUBJECT = Subject(
    name="network",
    title="every node reaches every other node",
    probes=(interfaces.INTERFACES,),
    multi_node_probes=(MESH, RATES),
    rules=(
        interfaces.find_down_links,
        find_connection_failures,
        find_unresolved_names,
        find_loopback_peers,
        find_differing_names,
        find_occupied_port,
        interfaces.find_missing_interfaces,
        interfaces.find_differing_mtu,
        interfaces.report_used_interfaces,
        find_flaky_connections,
        find_bad_links,
        report_sparse_mesh,
        find_unknown_connections,
        make_unknown_rule(interfaces.INTERFACES),
    ),
    diagnoses=(*list_diagnoses(network), *list_unknown_diagnoses((interfaces.INTERFACES,))),
    untested=list_nodes_without_peer,
)


def build_subject(*, all_pairs: bool = False) -> Subject:
    """The subject; `all_pairs` tries each pair however many nodes there are."""
    return replace(SUBJECT, multi_node_probes=(build_mesh_probe(all_pairs=all_pairs), RATES))
