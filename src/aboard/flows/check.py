"""`aboard check`: visit every node, all at once, and judge what they answered."""

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
    wire_of: WireOf = usual_wire,
    on_progress: OnProgress = lambda _node, _phase: None,
    dial_seconds: float = DIAL_SECONDS,
) -> Report:
    """Asks all nodes at once; one that is slow or hostile costs the others nothing."""
    began = monotonic()
    fleet = Fleet(wire_of, on_phase=on_progress, seconds=dial_seconds)
    probes = tuple(probe for subject in subjects for probe in subject.probes)
    async with asyncio.TaskGroup() as group:
        visits = [group.create_task(_visit(fleet, node, probes, on_progress)) for node in cluster]
    visited = {node.name: task.result() for node, task in zip(cluster, visits, strict=True)}
    facts = Facts(
        cluster=cluster,
        contacts={name: each.contact for name, each in visited.items()},
        answers={
            probe.name: {name: each.facts[probe.name] for name, each in visited.items() if probe.name in each.facts}
            for probe in probes
        },
    )
    by_subject = {subject.name: tuple(subject.judge(facts)) for subject in subjects}
    return Report(facts=facts, by_subject=by_subject, seconds=monotonic() - began)


async def _visit(fleet: Fleet, node: Node, probes: Sequence[Probe[Any]], on_progress: OnProgress) -> Visit:
    done = await visit(fleet, node, probes)
    on_progress(node, "answered" if isinstance(done.contact, Reached) else "failed")
    return done
