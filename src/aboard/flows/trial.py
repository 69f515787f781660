"""`aboard launch --trial`: the user's command for seconds, on each node alone, on pairs, on all."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from time import monotonic, time

from aboard.core.cluster import Cluster
from aboard.core.event import Event
from aboard.core.facts import Facts
from aboard.core.lease import Lease
from aboard.core.planning import plan as make_plan
from aboard.core.request import Request
from aboard.core.trial import Tried, good, stages, stuck, verdict
from aboard.diagnoses import Finding
from aboard.flows.conductor import Conductor, Outcome
from aboard.flows.control import roster_of
from aboard.flows.seats import master, seats
from aboard.record.places import RunDirectory
from aboard.record.record import Record
from aboard.wires.fleet import Fleet

OnTried = Callable[[Tried], None]


async def trial(
    cluster: Cluster,
    request: Request,
    facts: Facts,
    fleet: Fleet,
    run: RunDirectory,
    *,
    lease: Lease,
    on_tried: OnTried = lambda _tried: None,
) -> list[Tried]:
    """Stops after the first stage in which a group fails: what is larger would fail of the same."""
    tried: list[Tried] = []
    number = 0
    for stage in stages([node.name for node in cluster if node.slots != 0]):
        trials = []
        for group in stage:
            number += 1
            trials.append(_try(number, group, cluster, request, facts, fleet, run, lease))
        held = await asyncio.gather(*trials)
        for each in held:
            on_tried(each)
        tried += held
        if not all(each.passed for each in held):
            break
    _write_end(run, verdict(tried))
    return tried


def _write_end(run: RunDirectory, found: Finding | None) -> None:
    """What the list of runs shows: the groups have records of their own, of which it knows nothing."""
    record = Record.open(run, ranks=1)
    try:
        why = "every node can run it" if found is None else found.seen
        data = {"why": why, "code": 0 if found is None else 1}
        record.event(Event(node="", seq=0, at=time(), kind="finished", data=data))
        record.write_findings([] if found is None else [found])
    finally:
        record.close()


async def _try(
    number: int,
    group: tuple[str, ...],
    cluster: Cluster,
    request: Request,
    facts: Facts,
    fleet: Fleet,
    run: RunDirectory,
    lease: Lease,
) -> Tried:
    part = replace(cluster, nodes=tuple(node for node in cluster if node.name in group))
    own = replace(facts, cluster=part)
    # Any port: groups run side by side, and this is no place to insist.
    asked = replace(request, nodes=None, master_port=None)
    where = replace(master(part, asked, own), port=0)
    plan = make_plan(part, asked, seats(own), run=f"{run.id}.t{number}", master=where)
    directory = RunDirectory(run.path / f"trial-{number}")
    directory.make()
    record = Record.open(directory, ranks=plan.world)
    began = monotonic()
    watch = _Watch()
    conductor = Conductor(plan, fleet, lease=lease, record=record, viewer=watch)
    try:
        outcome = await conductor.conduct()
    finally:
        record.close()
    return _told(group, outcome, watch, monotonic() - began)


class _Watch:
    """Stops a group as soon as it has shown that it can, or that it is stuck."""

    def __init__(self) -> None:
        self.answer: bool | None = None
        self.found: Finding | None = None
        self._conductor: Conductor | None = None

    def began(self, conductor: Conductor) -> None:
        self._conductor = conductor

    def event(self, event: Event) -> None:
        self.tick(time())

    def tick(self, now: float) -> None:
        conductor = self._conductor
        if conductor is None or self.answer is not None or conductor.run.generation.first_death is not None:
            return
        self.answer = good(conductor.run, conductor.plan.world, now)
        if self.answer is False:
            self.found = stuck(roster_of(conductor))
        if self.answer is not None:
            conductor.stop("the trial has seen enough")


def _told(group: tuple[str, ...], outcome: Outcome, watch: _Watch, seconds: float) -> Tried:
    findings = (watch.found,) if watch.found is not None else outcome.findings
    passed = watch.answer is True or (watch.answer is None and outcome.code == 0)
    said = findings[0].seen if findings else "it ran" if passed else outcome.why
    return Tried(group=group, passed=passed, seconds=seconds, said=said, findings=() if passed else findings)
