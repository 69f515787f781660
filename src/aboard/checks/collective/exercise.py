"""The exercise: a real job of torch.distributed over all nodes; where it fails, smaller ones until it is clear why.

Ranks are started as a run's are: the node's own Python after its `setup` lines, in its directory, with its env, on the
interface and the addresses that its peers have just been seen to reach.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import field, replace

from aboard.checks.collective.crew import Crew, muster
from aboard.checks.collective.halving import Group, locate
from aboard.checks.collective.hold import FULL, PAIRS, SHORT, Held, hold
from aboard.checks.collective.job import SHOWN, Job, slow, usual
from aboard.checks.collective.nccl_log import NcclLog, parse_log
from aboard.checks.collective.report import Row, row
from aboard.checks.network.exercise import MESH
from aboard.checks.network.mesh import Mesh, Pair
from aboard.checks.network.rates import cover
from aboard.core.exercise import Exercise, Replies, Round, Script
from aboard.core.facts import Facts
from aboard.lazy import dataclass

# A node that has no rank is left out and the others are tried again, this often.
MOST_DEAD = 3


@dataclass(frozen=True, kw_only=True)
class Blame:
    """A node (one name), a link (two), or all that failed together; `seen` is how it showed."""

    nodes: tuple[str, ...]
    seen: str


@dataclass(frozen=True, kw_only=True)
class Collective:
    """What the job came to. `nodes` took part in what the rows tell; `why` is said when nobody did."""

    nodes: tuple[str, ...] = ()
    ranks: int = 0
    backend: str = ""
    torch: str = ""
    rows: tuple[Row, ...] = ()
    # In Mbit/s, by pair of nodes.
    rates: Mapping[Pair, float] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    # Nodes that have no rank, and nodes that were lost on the way, with the reason.
    dead: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    failed: tuple[Blame, ...] = ()
    wrong: tuple[Blame, ...] = ()
    slow: tuple[Blame, ...] = ()
    # It failed, and did not when it was tried again.
    once: str = ""
    logs: Mapping[str, NcclLog] = field(default_factory=dict)

    @property
    def usual(self) -> float:
        return usual(self.rates)


def collective(*, every: bool = False) -> Exercise[Collective]:
    """The exercise; `every` node takes part, also of many that are one machine."""
    return Exercise(name="collective", script=lambda facts: _script(facts, every=every), quick=False)


COLLECTIVE = collective()


def _script(facts: Facts, *, every: bool) -> Script[Collective]:
    crew = muster(facts, every=every)
    if not crew.ranks:
        return Collective(why=crew.why, left_out=crew.left_out)
    mesh = facts.outcome(MESH)
    if mesh is None:
        # Asked for alone: the addresses and interfaces are needed all the same.
        mesh = yield from MESH.script(facts)
    held = Held(facts=facts, mesh=mesh if isinstance(mesh, Mesh) else None, crew=crew)
    names = tuple(crew.ranks)
    dead: dict[str, str] = {}
    lost: dict[str, str] = {}
    job = (yield from hold(held, [names], FULL))[0]
    for _ in range(MOST_DEAD):
        if not job.dead and not job.lost and not job.slow_to_load:
            break
        dead.update(job.dead)
        lost.update({**job.lost, **job.slow_to_load})
        names = tuple(name for name in names if name not in dead and name not in lost)
        if not names:
            return Collective(dead=dead, lost=lost, left_out=crew.left_out)
        job = (yield from hold(held, [names], FULL))[0]
    if job.well:
        slow_links = yield from _slow(held, job)
        outcome = _outcome(crew, job, slow_links=slow_links)
    else:
        outcome = yield from _failed(held, job)
    return replace(outcome, dead=dead, lost=lost)


def _slow(held: Held, job: Job) -> Generator[Round, Replies, tuple[Blame, ...]]:
    """What is slow is measured again before it is named: a machine that was busy for a moment is no slow link."""
    sockets = not held.crew.nccl
    bad = slow(job.rates, sockets=sockets)
    rates = dict(job.rates)
    if bad:
        again = (yield from hold(held, [job.nodes], PAIRS))[0].rates
        bad &= slow(again, sockets=sockets)
        rates = {pair: max(mbit, again.get(pair, 0.0)) for pair, mbit in rates.items()}
    return tuple(
        Blame(nodes=nodes, seen=f"{min(rates[pair] for pair in pairs):,.0f} Mbit/s where {usual(rates):,.0f} are usual")
        for nodes, pairs in cover(bad)
    )


def _failed(held: Held, job: Job) -> Script[Collective]:
    """Smaller jobs, until the node or the link is clear without which the rest goes well."""
    seen = _how(job)
    wrong = any(report.wrong for reports in job.reports.values() for report in reports)
    tried: list[Job] = []
    search = locate(job.nodes, job.told)
    blamed: tuple[Group, ...] = ()
    if len(job.nodes) > 1:
        try:
            groups = next(search)
            while True:
                jobs = yield from hold(held, groups, SHORT)
                tried += jobs
                groups = search.send([each.well for each in jobs])
        except StopIteration as done:
            blamed = done.value
    if not blamed:
        again = (yield from hold(held, [job.nodes], FULL))[0]
        if again.well:
            return _outcome(held.crew, again, once=seen)
        blamed = (job.nodes,)
    blames = tuple(Blame(nodes=nodes, seen=_shown(nodes, [job, *tried], seen)) for nodes in blamed)
    return _outcome(held.crew, job, failed=() if wrong else blames, wrong=blames if wrong else ())


def _outcome(
    crew: Crew,
    job: Job,
    *,
    failed: tuple[Blame, ...] = (),
    wrong: tuple[Blame, ...] = (),
    slow_links: tuple[Blame, ...] = (),
    once: str = "",
) -> Collective:
    head = job.head
    # One rank talks to nobody: its figures would be those of its memory.
    timings = head.rows if head and job.well and job.world > 1 else ()
    logs = {node: parse_log(line for report in reports for line in report.log) for node, reports in job.reports.items()}
    return Collective(
        nodes=job.nodes,
        ranks=job.world,
        backend=head.backend if head else "",
        torch=head.torch if head else "",
        rows=tuple(row(*each, job.world) for each in timings),
        rates=job.rates,
        left_out=crew.left_out,
        failed=failed,
        wrong=wrong,
        slow=slow_links,
        once=once,
        logs={node: log for node, log in logs.items() if log.version or log.networks},
    )


def _how(job: Job) -> str:
    """How a job that failed showed it, in its earliest rank's words."""
    for node, reports in job.reports.items():
        for report in reports:
            if report.wrong:
                each = report.wrong[0]
                return f"{each.op} of {each.size:,} bytes gave wrong values on {node}"
    if job.cause is None:
        return "no rank says why"
    node, report = job.cause
    return f"on {node}: {report.error.visible(SHOWN)}"


def _shown(nodes: Sequence[str], jobs: Sequence[Job], seen: str) -> str:
    """How the blamed ones showed it: the words of the smallest job that failed with them."""
    own = [job for job in jobs if set(job.nodes) & set(nodes) and not job.well]
    smallest = min(own, key=lambda job: len(job.nodes), default=None)
    if smallest is None:
        return seen
    waiting = sorted({one for job in own for one, other in job.told if other in nodes and one not in nodes})
    said = f"; {', '.join(waiting[:6])} wait for it" if waiting else ""
    return f"{_how(smallest)}{said}"
