"""`aboard launch`: look at the nodes, plan, and conduct the run over the links of the look."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import time

from aboard.core.cluster import Cluster
from aboard.core.facts import Facts
from aboard.core.finding import Severity
from aboard.core.lease import Lease
from aboard.core.plan import Plan
from aboard.core.planning import plan as make_plan
from aboard.core.request import Request
from aboard.core.roster import Roster, roster
from aboard.core.rule import Subject
from aboard.flows.check import Report, examined, watched_fleet
from aboard.flows.conductor import Conductor, Outcome, Viewer
from aboard.flows.seats import master, seats
from aboard.flows.watcher import Watcher
from aboard.record.record import Record
from aboard.wires.fleet import Fleet, WireOf, usual_wire

OnConductor = Callable[[Conductor], None]


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a launch asks before it starts: these subjects, quickly or in full; none at all is the user's own risk."""

    subjects: Sequence[Subject] = ()
    quick: bool = True


@dataclass(frozen=True, kw_only=True)
class Launched:
    """How far a launch came: stopped by the look at the nodes, or run to its end."""

    report: Report | None
    outcome: Outcome | None = None
    roster: Roster | None = None


async def planned(
    cluster: Cluster, request: Request, look: Look, *, run: str, watcher: Watcher, wire_of: WireOf = usual_wire
) -> tuple[Report | None, Plan]:
    """The plan of a dry run: what would be started, from the same look; nothing is started."""
    fleet = watched_fleet(watcher, wire_of)
    if not look.subjects:
        return None, _plan(cluster, request, _unseen(cluster), run)
    async with examined(cluster, look.subjects, fleet, quick=look.quick, watcher=watcher) as (report, _links):
        return report, _plan(cluster, request, report.facts, run)


async def launch(
    cluster: Cluster,
    request: Request,
    look: Look,
    record: Record,
    *,
    watcher: Watcher,
    viewer: Viewer,
    lease: Lease,
    on_look: Callable[[Report], None] = lambda _report: None,
    on_conductor: OnConductor = lambda _conductor: None,
    fleet: Fleet | None = None,
    wire_of: WireOf = usual_wire,
) -> Launched:
    """Nothing is started while the look finds what would stop a run; every rank that is started is seen to its end.

    A `fleet` may have begun to dial already.
    """
    fleet = fleet or watched_fleet(watcher, wire_of)
    fleet.on_phase = lambda node, phase: watcher.dialling(node.name, phase)
    report = None
    run = record.run.id
    if look.subjects:
        async with examined(cluster, look.subjects, fleet, quick=look.quick, watcher=watcher, keep=True) as (
            report,
            links,
        ):
            on_look(report)
            if any(finding.severity is Severity.BLOCK for finding in report.findings):
                return Launched(report=report)
            plan = _plan(cluster, request, report.facts, run)
            fleet.keep(links)
    else:
        plan = _plan(cluster, request, _unseen(cluster), run)
    fixed = request.master_port is not None
    conductor = Conductor(plan, fleet, lease=lease, record=record, viewer=viewer, fixed_port=fixed)
    on_conductor(conductor)
    try:
        outcome = await conductor.conduct()
    finally:
        await fleet.close()
    return Launched(report=report, outcome=outcome, roster=roster(conductor.plan, conductor.run, time()))


def _plan(cluster: Cluster, request: Request, facts: Facts, run: str) -> Plan:
    return make_plan(cluster, request, seats(facts), run=run, master=master(cluster, request, facts))


def _unseen(cluster: Cluster) -> Facts:
    return Facts(cluster=cluster, contacts={})
