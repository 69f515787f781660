"""`aboard check`: visit every node, all at once, hold the exercises, and judge what came of it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from aboard.core.cluster import Cluster
from aboard.core.facts import Facts
from aboard.core.finding import Finding, worst_first
from aboard.core.node import Node
from aboard.core.probe import Probe
from aboard.core.reach import Reached
from aboard.core.rule import Subject
from aboard.flows.drill import drill
from aboard.flows.visit import Visit, visit
from aboard.wires.fleet import DIAL_SECONDS, Fleet, WireOf, usual_wire

OnProgress = Callable[[Node, str], None]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a check found out, and how long it took."""

    facts: Facts
    by_subject: Mapping[str, tuple[Finding, ...]]
    seconds: float

    @property
    def findings(self) -> list[Finding]:
        return worst_first([finding for findings in self.by_subject.values() for finding in findings])


async def check(
    cluster: Cluster,
    subjects: Sequence[Subject],
    *,
    quick: bool = False,
    wire_of: WireOf = usual_wire,
    on_progress: OnProgress = lambda _node, _phase: None,
    dial_seconds: float = DIAL_SECONDS,
) -> Report:
    """Asks all nodes at once; one that is slow or hostile costs the others nothing."""
    began = monotonic()
    fleet = Fleet(wire_of, on_phase=on_progress, seconds=dial_seconds)
    probes = [probe for subject in subjects for probe in subject.probes if probe.quick or not quick]
    exercises = [each for subject in subjects for each in subject.exercises if each.quick or not quick]
    visits: dict[str, Visit] = {}

    async def call(node: Node) -> None:
        visits[node.name] = done = await visit(fleet, node, probes)
        if done.link is not None and not exercises:
            # Nobody needs it any more: its end goes on beside the others' beginnings.
            await done.link.close()
        on_progress(node, "answered" if isinstance(done.contact, Reached) else "failed")

    try:
        async with asyncio.TaskGroup() as group:
            for node in cluster:
                group.create_task(call(node))
        facts = _facts(cluster, visits, probes)
        links = {name: done.link for name, done in visits.items() if done.link is not None}
        for exercise in exercises:
            facts = await drill(exercise, facts, links)
    finally:
        await asyncio.gather(*(done.link.close() for done in visits.values() if done.link is not None))
    by_subject = {subject.name: tuple(subject.judge(facts)) for subject in subjects}
    return Report(facts=facts, by_subject=by_subject, seconds=monotonic() - began)


def _facts(cluster: Cluster, visits: Mapping[str, Visit], probes: Sequence[Probe[Any]]) -> Facts:
    return Facts(
        cluster=cluster,
        contacts={node.name: visits[node.name].contact for node in cluster},
        answers={
            probe.name: {name: done.facts[probe.name] for name, done in visits.items() if probe.name in done.facts}
            for probe in probes
        },
    )
