"""Evidence of an external job: without phase reports, its phases are estimated from connections and stacks."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

from aboard.core.cluster.head_machine import is_loopback
from aboard.core.cluster.node import Node
from aboard.core.evidence.external_jobs import ExternalJob, ExternalRank
from aboard.core.evidence.node_snapshot import NodeSnapshot, RankSnapshot, StoreRequest, TcpConnection, split_endpoint
from aboard.core.evidence.python_stacks import classify_activity, parse_main_thread
from aboard.core.evidence.run_evidence import Evidence, RankView
from aboard.core.plan.plan import MasterAddress, NodePlan, Plan, Start
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_state import NodeConnection, RankProcess, Run

# The node of ranks that were not found; no host has this name.
UNKNOWN_NODE = "elsewhere"
# CPU use, in cores, of a process that is always busy, and of one that only waits: its threads may wake up now and
# then.
_BUSY, _IDLE = 0.2, 0.05
_WAITS = ("collective", "group", "store")


def build_external_evidence(
    job: ExternalJob,
    nodes: Mapping[str, Node],
    snapshots: Mapping[str, NodeSnapshot],
    *,
    unheard: Mapping[str, str],
    now: float,
    quiet: float,
) -> Evidence:
    """Presents an external job like our own run; ranks that were not found are in it, with nothing known about them."""
    plan = _build_plan(job, nodes)
    run = Run(id=plan.run)
    run.generation.at = job.began
    run.generation.connections = {part.node.name: NodeConnection(state="held", at=job.began) for part in plan.parts}
    rank_snapshots = {
        rank: snapshots[external_rank.node].ranks.get(rank)
        for rank, external_rank in job.ranks.items()
        if external_rank.node in snapshots
    }
    for rank, phase in estimate_phases(job, rank_snapshots).items():
        external_rank = job.ranks[rank]
        child = RankProcess(node=external_rank.node, name=str(rank), state="started", phase=phase)
        child.at = child.since = external_rank.process.began
        run.generation.children[external_rank.node, str(rank)] = child
        run.generation.phases[phase] += 1
    joined = {
        name: replace(
            snapshot, ranks={rank: _add_rendezvous(job, rank, each, run) for rank, each in snapshot.ranks.items()}
        )
        for name, snapshot in snapshots.items()
    }
    return Evidence(plan=plan, run=run, now=now, snapshots=joined, unheard=unheard, quiet=quiet)


def estimate_phases(job: ExternalJob, rank_snapshots: Mapping[int, RankSnapshot | None]) -> dict[int, Phase]:
    """Estimates the phase of each rank: Python, torch, store, process group."""
    ends = {
        (each.local, each.remote): rank
        for rank, snapshot in rank_snapshots.items()
        if snapshot is not None
        for each in snapshot.sockets
        if each.state == "ESTABLISHED" and job.port not in _get_ports(each)
    }
    found = {}
    for rank, external_rank in job.ranks.items():
        snapshot = rank_snapshots.get(rank)
        sockets = snapshot.sockets if snapshot is not None else ()
        peers = any(ends.get((each.remote, each.local), rank) != rank for each in sockets)
        at = classify_activity(parse_main_thread(snapshot.stack)) if snapshot is not None else ""
        found[rank] = _estimate_phase(
            job, external_rank, at, stored=any(_is_store_connection(each, job.port) for each in sockets), peers=peers
        )
    return found


def has_waiting_ranks(evidence: Evidence) -> bool:
    """Whether any rank may wait for others or has not joined them: another snapshot then shows whether that ends."""
    waiting = (
        view
        for view in evidence.views
        if view.alive and (view.at in _WAITS or view.phase < Phase.GROUP or not view.frames)
    )
    return len(evidence.views) > 1 and any(waiting)


def has_moved(before: Evidence, after: Evidence) -> bool:
    """Whether the job made progress between two snapshots.

    A waiting rank made progress if its stack changed or it was sent data; any other rank if its stack changed or it
    used some CPU. Constant CPU use is no progress, since it may be a loop. Without stacks, data that was sent tells.
    """
    pairs = list(zip(before.views, after.views, strict=True))
    if any(one.phase != other.phase for one, other in pairs):
        return True
    comparable = [(one, other) for one, other in pairs if one.frames and other.frames]
    unread = [pair for pair in pairs if pair not in comparable]
    if any(_count_sent_segments(one, before) != _count_sent_segments(other, after) for one, other in unread):
        return True
    for one, other in comparable:
        if one.at in _WAITS:
            stands = one.frames == other.frames and _count_sent_segments(one, before) == _count_sent_segments(
                other, after
            )
        else:
            stands = _is_busy(one, other) or (one.frames == other.frames and _is_idle(one) and _is_idle(other))
        if not stands:
            return True
    return False


def _build_plan(job: ExternalJob, nodes: Mapping[str, Node]) -> Plan:
    def find_node(rank: int) -> Node:
        if rank in job.ranks:
            return nodes[job.ranks[rank].node]
        # Rank 0 is at the master address.
        return Node(name=job.address) if rank == 0 and job.address else Node(name=UNKNOWN_NODE)

    parts = []
    for node, ranks in groupby(range(job.size), key=find_node):
        starts = tuple(Start(child=str(rank), argv=(), rank=rank) for rank in ranks)
        parts.append(NodePlan(node=node, starts=starts))
    master = MasterAddress(node=find_node(0).name, address=job.address, port=job.port)
    return Plan(
        run="foreign", program=Program(kind=ProgramKind.PROGRAM, target=job.what), master=master, parts=tuple(parts)
    )


def _estimate_phase(job: ExternalJob, external_rank: ExternalRank, at: str, *, stored: bool, peers: bool) -> Phase:
    if not external_rank.process.torch and not job.launching:
        return Phase.PYTHON
    if job.size == 1 and not job.launching:
        return Phase.STEPS
    if peers and at not in ("store", "group"):
        return Phase.STEPS
    if at == "collective" and not job.launching:
        # The first collective opens the connections that it needs.
        return Phase.GROUP
    return Phase.STORE if stored or peers else Phase.TORCH


def _add_rendezvous(job: ExternalJob, rank: int, snapshot: RankSnapshot, run: Run) -> RankSnapshot:
    """Adds what a beacon would report about a rank that connects to the store or waits there."""
    external_rank = job.ranks[rank]
    phase = run.generation.children[external_rank.node, str(rank)].phase
    calls = any(each.state == "SYN_SENT" and split_endpoint(each.remote)[1] == job.port for each in snapshot.sockets)
    inside = classify_activity(parse_main_thread(snapshot.stack)) in ("store", "group")
    if phase >= Phase.GROUP or not job.port or not (calls or inside or phase is Phase.STORE or job.launching):
        return snapshot
    process = external_rank.process
    request = StoreRequest(host=process.address, port=process.port, world=job.size, master=process.hosts)
    return replace(snapshot, joining=request)


def _is_store_connection(each: TcpConnection, port: int) -> bool:
    """Whether this is a connection to the store, or the store's listening socket."""
    if each.state == "LISTEN":
        return split_endpoint(each.local)[1] == port
    return each.state == "ESTABLISHED" and split_endpoint(each.remote)[1] == port


def _count_sent_segments(view: RankView, evidence: Evidence) -> dict[int, int]:
    """Segments sent to each other rank, without retransmissions and without the store's regular traffic."""
    sockets = view.seen.sockets if view.seen is not None else ()
    return {
        each.inode: (each.segments or 0) - (each.losses or 0)
        for each in sockets
        if each.state == "ESTABLISHED"
        and evidence.plan.master.port not in _get_ports(each)
        and _is_job_peer(each, evidence)
    }


def _is_busy(*views: RankView) -> bool:
    return all(_get_cpu(view) >= _BUSY for view in views)


def _is_idle(view: RankView) -> bool:
    return _get_cpu(view) < _IDLE


def _get_cpu(view: RankView) -> float:
    return view.seen.process.cpu if view.seen is not None and view.seen.process is not None else 0.0


def _is_job_peer(each: TcpConnection, evidence: Evidence) -> bool:
    host = split_endpoint(each.remote)[0]
    return is_loopback(host) or host in evidence.owners


def _get_ports(each: TcpConnection) -> tuple[int, int]:
    return split_endpoint(each.local)[1], split_endpoint(each.remote)[1]
