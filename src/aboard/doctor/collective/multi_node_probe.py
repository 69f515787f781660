"""The multi-node probe: a real torch.distributed job over all nodes; if it fails, smaller ones locate the fault.

Ranks are started as a run's are: the node's own Python after its `setup` lines, in its directory, with its env, on the
interface and the addresses that its peers have just reached.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import field, replace

from aboard.core.probes.facts import Facts
from aboard.core.probes.multi_node_probe import MultiNodeProbe, Replies, Round, Script
from aboard.core.text.input_text import agree
from aboard.doctor.collective.fault_bisection import NodeGroup, locate_faults
from aboard.doctor.collective.job_result import MAX_ERROR_LENGTH, CollectiveJob, find_slow_pairs, find_usual_rate
from aboard.doctor.collective.job_runner import (
    FULL_WORKLOAD,
    PAIRS_WORKLOAD,
    PATIENT_WORKLOAD,
    SHORT_WORKLOAD,
    JobContext,
    run_jobs,
)
from aboard.doctor.collective.nccl_init_log import NcclInitLog, parse_init_log
from aboard.doctor.collective.participants import Participants, select_participants
from aboard.doctor.collective.rank_report import BandwidthRow, compute_bandwidth
from aboard.doctor.network.link_rates import group_bad_pairs
from aboard.doctor.network.mesh_probe import MESH
from aboard.doctor.network.mesh_result import MeshResult, Pair
from aboard.lazy_dataclass import dataclass

# How often nodes without a rank are left out and the others tried again.
MOST_DEAD = 3


@dataclass(frozen=True, kw_only=True)
class CollectiveFault:
    """A node (one name), a link (two), or all that failed together; `seen` is the observation."""

    nodes: tuple[str, ...]
    seen: str


@dataclass(frozen=True, kw_only=True)
class CollectiveResult:
    """The outcome of the job. `nodes` took part in the measured rows; `why` is the reason when none did."""

    nodes: tuple[str, ...] = ()
    ranks: int = 0
    backend: str = ""
    torch: str = ""
    rows: tuple[BandwidthRow, ...] = ()
    # In Mbit/s, by pair of nodes.
    rates: Mapping[Pair, float] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    # Nodes without a rank, and nodes whose connection was lost, with the reason.
    dead: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    failed: tuple[CollectiveFault, ...] = ()
    wrong: tuple[CollectiveFault, ...] = ()
    slow: tuple[CollectiveFault, ...] = ()
    # How it failed, if it succeeded when repeated.
    once: str = ""
    logs: Mapping[str, NcclInitLog] = field(default_factory=dict)

    @property
    def usual(self) -> float:
        return find_usual_rate(self.rates)


def build_collective_probe(*, every: bool = False) -> MultiNodeProbe[CollectiveResult]:
    """The probe; with `every`, all nodes take part even if many of them are one machine."""
    return MultiNodeProbe(
        name="collective", script=lambda facts: _run_collective_probe(facts, every=every), quick=False
    )


COLLECTIVE = build_collective_probe()


def _run_collective_probe(facts: Facts, *, every: bool) -> Script[CollectiveResult]:
    participants = select_participants(facts, every=every)
    if not participants.ranks:
        return CollectiveResult(why=participants.why, left_out=participants.left_out)
    mesh = MESH.outcome(facts)
    if mesh is None:
        # Without the network subject, the addresses and interfaces are still needed.
        mesh = yield from MESH.script(facts)
    context = JobContext(facts=facts, mesh=mesh if isinstance(mesh, MeshResult) else None, participants=participants)
    names = tuple(participants.ranks)
    dead: dict[str, str] = {}
    lost: dict[str, str] = {}
    job = (yield from run_jobs(context, [names], FULL_WORKLOAD))[0]
    if job.late:
        job = (yield from run_jobs(context, [names], PATIENT_WORKLOAD))[0]
    for _ in range(MOST_DEAD):
        if not job.dead and not job.lost and not job.slow_to_load:
            break
        dead.update(job.dead)
        lost.update({**job.lost, **job.slow_to_load})
        names = tuple(name for name in names if name not in dead and name not in lost)
        if not names:
            return CollectiveResult(dead=dead, lost=lost, left_out=participants.left_out)
        job = (yield from run_jobs(context, [names], FULL_WORKLOAD))[0]
    if job.well:
        slow_links = yield from _confirm_slow_links(context, job)
        outcome = _build_result(participants, job, slow_links=slow_links)
    else:
        outcome = yield from _locate_failure(context, job)
    return replace(outcome, dead=dead, lost=lost)


def _confirm_slow_links(
    context: JobContext, job: CollectiveJob
) -> Generator[Round, Replies, tuple[CollectiveFault, ...]]:
    """Measures slow links again before reporting them: a briefly busy machine is no slow link."""
    sockets = not context.participants.nccl
    bad = find_slow_pairs(job.rates, sockets=sockets)
    rates = dict(job.rates)
    if bad:
        again = (yield from run_jobs(context, [job.nodes], PAIRS_WORKLOAD))[0].rates
        bad &= find_slow_pairs(again, sockets=sockets)
        rates = {pair: max(mbit, again.get(pair, 0.0)) for pair, mbit in rates.items()}
    return tuple(
        CollectiveFault(
            nodes=nodes,
            seen=f"{min(rates[pair] for pair in pairs):,.0f} Mbit/s; typical here is {find_usual_rate(rates):,.0f}",
        )
        for nodes, pairs in group_bad_pairs(bad)
    )


def _locate_failure(context: JobContext, job: CollectiveJob) -> Script[CollectiveResult]:
    """Runs smaller jobs until the node or link is found without which the rest succeeds."""
    seen = _describe_failure(job)
    wrong = any(report.wrong for reports in job.reports.values() for report in reports)
    tried: list[CollectiveJob] = []
    search = locate_faults(job.nodes, job.reported_pairs)
    blamed: tuple[NodeGroup, ...] = ()
    if len(job.nodes) > 1:
        try:
            groups = next(search)
            while True:
                jobs = yield from run_jobs(context, groups, SHORT_WORKLOAD)
                tried += jobs
                groups = search.send([each.well for each in jobs])
        except StopIteration as done:
            blamed = done.value
    if not blamed:
        again = (yield from run_jobs(context, [job.nodes], FULL_WORKLOAD))[0]
        if again.well:
            return _build_result(context.participants, again, once=seen)
        blamed = (job.nodes,)
    faults = tuple(CollectiveFault(nodes=nodes, seen=_describe_fault(nodes, [job, *tried], seen)) for nodes in blamed)
    return _build_result(context.participants, job, failed=() if wrong else faults, wrong=faults if wrong else ())


def _build_result(
    participants: Participants,
    job: CollectiveJob,
    *,
    failed: tuple[CollectiveFault, ...] = (),
    wrong: tuple[CollectiveFault, ...] = (),
    slow_links: tuple[CollectiveFault, ...] = (),
    once: str = "",
) -> CollectiveResult:
    head = job.head
    # A single rank has no peers: its figures would be those of its memory.
    timings = head.rows if head and job.well and job.world > 1 else ()
    logs = {
        node: parse_init_log(line for report in reports for line in report.log) for node, reports in job.reports.items()
    }
    return CollectiveResult(
        nodes=job.nodes,
        ranks=job.world,
        backend=head.backend if head else "",
        torch=head.torch if head else "",
        rows=tuple(compute_bandwidth(*each, job.world) for each in timings),
        rates=job.rates,
        left_out=participants.left_out,
        failed=failed,
        wrong=wrong,
        slow=slow_links,
        once=once,
        logs={node: log for node, log in logs.items() if log.version or log.networks},
    )


def _describe_failure(job: CollectiveJob) -> str:
    """How a job failed, from the report of the rank that failed first."""
    for node, reports in job.reports.items():
        for report in reports:
            if report.wrong:
                each = report.wrong[0]
                return f"{each.op} of {each.size:,} bytes gave wrong values on {node}"
    if job.cause is None:
        return "no rank reported a reason"
    node, report = job.cause
    return f"on {node}: {report.error.visible(MAX_ERROR_LENGTH)}"


def _describe_fault(nodes: Sequence[str], jobs: Sequence[CollectiveJob], seen: str) -> str:
    """How the blamed nodes failed, from the smallest failing job with them."""
    own = [job for job in jobs if set(job.nodes) & set(nodes) and not job.well]
    smallest = min(own, key=lambda job: len(job.nodes), default=None)
    if smallest is None:
        return seen
    waiting = sorted({one for job in own for one, other in job.reported_pairs if other in nodes and one not in nodes})
    waiting_text = (
        f"; {', '.join(waiting[:6])} {agree(waiting, 'was', 'were')} waiting for {agree(nodes, 'it', 'them')}"
        if waiting
        else ""
    )
    return f"{_describe_failure(smallest)}{waiting_text}"
