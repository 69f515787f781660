"""`aboard launch`: look at the nodes, plan, and conduct the run over the links of the look."""

from collections.abc import Callable, Sequence
from time import time
from typing import Protocol

from aboard.core.cluster import Cluster
from aboard.core.facts import Facts
from aboard.core.interpreter import HeadEnvironment
from aboard.core.lease import Lease
from aboard.core.plan import Plan
from aboard.core.planning import plan as make_plan
from aboard.core.rank_environment import RankSpec
from aboard.core.request import Request
from aboard.core.roster import Roster, roster
from aboard.core.rule import Subject
from aboard.diagnoses import Finding, Severity
from aboard.flows.check import Report, examined, watched_fleet
from aboard.flows.conductor import Conductor, Outcome, Viewer
from aboard.flows.seats import master, seats
from aboard.flows.watcher import Watcher
from aboard.lazy import dataclass
from aboard.record.record import Record
from aboard.wires.fleet import Fleet, WireOf, usual_wire

OnConductor = Callable[[Conductor], None]


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a launch asks before it starts: these subjects, quickly or in full; none at all is the user's own risk.

    Ranks get the head's `environment` on nodes that have it, whatever is asked.
    """

    subjects: Sequence[Subject] = ()
    quick: bool = True
    environment: HeadEnvironment | None = None


class Cargo(Protocol):
    """What a run brings along beside its program: settled when the nodes are known, and loaded before ranks start."""

    async def settle(self, plan: Plan, facts: Facts) -> tuple[Plan, Sequence[Finding]]:
        """The plan as it is with it, and what is in its way."""

    async def load(self, plan: Plan, fleet: Fleet) -> None:
        """Brings it to every node; raises AboardError where that can't be."""


@dataclass(frozen=True, kw_only=True)
class Launched:
    """How far a launch came: stopped by the look at the nodes, refused for its cargo, or run to its end."""

    report: Report | None
    refused: tuple[Finding, ...] = ()
    outcome: Outcome | None = None
    roster: Roster | None = None


async def planned(
    cluster: Cluster,
    request: Request,
    look: Look,
    *,
    run: str,
    watcher: Watcher,
    cargo: Cargo | None = None,
    wire_of: WireOf = usual_wire,
) -> tuple[Report | None, Plan, Sequence[Finding]]:
    """The plan of a dry run, from the same look, and what is in the way of its cargo; nothing is started."""
    fleet = watched_fleet(watcher, wire_of)
    spec = rank_spec(look, request)
    async with examined(cluster, look.subjects, fleet, quick=look.quick, spec=spec, watcher=watcher) as (
        report,
        _links,
    ):
        facts = report.facts
    plan = _plan(request, facts, run)
    report_or_none = report if look.subjects else None
    return (report_or_none, plan, ()) if cargo is None else (report_or_none, *await cargo.settle(plan, facts))


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
    cargo: Cargo | None = None,
    wire_of: WireOf = usual_wire,
) -> Launched:
    """Nothing is started while the look finds what would stop a run; every rank that is started is seen to its end.

    A `fleet` may have begun to dial already.
    """
    fleet = fleet or watched_fleet(watcher, wire_of)
    fleet.on_phase = lambda node, phase: watcher.dialling(node.name, phase)
    report = None
    spec = rank_spec(look, request)
    async with examined(cluster, look.subjects, fleet, quick=look.quick, spec=spec, watcher=watcher, keep=True) as (
        examination,
        links,
    ):
        facts = examination.facts
        if look.subjects:
            report = examination
            on_look(report)
            if any(finding.severity is Severity.BLOCK for finding in report.findings):
                return Launched(report=report)
        plan = _plan(request, facts, record.run.id)
        fleet.keep(links)
    try:
        if cargo is not None:
            plan, findings = await cargo.settle(plan, facts)
            if any(finding.severity is Severity.BLOCK for finding in findings):
                return Launched(report=report, refused=tuple(findings))
            await cargo.load(plan, fleet)
        fixed = request.master_port is not None
        conductor = Conductor(
            plan,
            fleet,
            lease=lease,
            record=record,
            viewer=viewer,
            fixed_port=fixed,
            stop_on_stall=request.stop_on_stall,
        )
        on_conductor(conductor)
        outcome = await conductor.conduct()
    finally:
        await fleet.close()
    return Launched(report=report, outcome=outcome, roster=roster(conductor.plan, conductor.run, time()))


def rank_spec(look: Look, request: Request) -> RankSpec:
    """A program that is brought to the nodes is not looked for there."""
    program = None if request.code else request.program
    return RankSpec(environment=look.environment, program=program, search_path=request.env.get("PATH"))


def _plan(request: Request, facts: Facts, run: str) -> Plan:
    cluster = facts.cluster
    return make_plan(cluster, request, seats(facts), run=run, master=master(cluster, request, facts))
