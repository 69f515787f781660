"""`aboard check`: visit every node, all at once, hold the exercises, and judge what came of it."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

from aboard.core.cascade import cascade
from aboard.core.cluster import Cluster
from aboard.core.facts import Facts
from aboard.core.node import Node
from aboard.core.probe import Probe
from aboard.core.rank_environment import RankSpec
from aboard.core.reach import Contact
from aboard.core.rule import Subject
from aboard.diagnoses import Diagnosis, Finding, worst_first
from aboard.flows.drill import drill
from aboard.flows.visit import Visit, visit
from aboard.flows.watcher import Unwatched, Watcher
from aboard.lazy import dataclass
from aboard.wires.fleet import DIAL_SECONDS, Dialled, Fleet, WireOf, usual_wire
from aboard.wires.link import Link


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a check found out, and how long it took."""

    facts: Facts
    by_subject: Mapping[str, tuple[Finding, ...]]
    seconds: float
    stories: tuple[Diagnosis, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """Worst first, with what another finding explains folded under it."""
        every = [finding for findings in self.by_subject.values() for finding in findings]
        return worst_first(cascade(every, self.stories))


async def check(
    cluster: Cluster,
    subjects: Sequence[Subject],
    *,
    quick: bool = False,
    spec: RankSpec | None = None,
    wire_of: WireOf = usual_wire,
    watcher: Watcher | None = None,
    dial_seconds: float = DIAL_SECONDS,
) -> Report:
    """Asks all nodes at once; one that is slow or hostile costs the others nothing."""
    watcher = watcher or Unwatched()
    fleet = watched_fleet(watcher, wire_of, dial_seconds)
    async with examined(cluster, subjects, fleet, quick=quick, spec=spec, watcher=watcher) as (report, _links):
        return report


def watched_fleet(watcher: Watcher, wire_of: WireOf = usual_wire, seconds: float = DIAL_SECONDS) -> Fleet:
    return Fleet(wire_of, on_phase=lambda node, phase: watcher.dialling(node.name, phase), seconds=seconds)


@asynccontextmanager
async def examined(
    cluster: Cluster,
    subjects: Sequence[Subject],
    fleet: Fleet,
    *,
    quick: bool,
    watcher: Watcher,
    spec: RankSpec | None = None,
    keep: bool = False,
) -> AsyncIterator[tuple[Report, dict[str, Dialled]]]:
    """A check and the links that it was made over, for whoever goes on with them; what is left of them is closed.

    With `keep` none is closed before that; else a node that no exercise needs is let go as soon as it can be.
    """
    began = monotonic()
    subjects = list(_asked(subjects, quick=quick))
    probes = [probe for subject in subjects for probe in subject.probes]
    exercises = [exercise for subject in subjects for exercise in subject.exercises]
    watcher.began(cluster, subjects)
    visits: dict[str, Visit] = {}
    links: dict[str, Dialled] = {}
    early = _EarlyExercises(cluster, subjects, watcher)

    async def call(node: Node) -> None:
        visits[node.name] = done = await visit(
            fleet,
            node,
            probes,
            spec=spec,
            on_met=partial(watcher.asking, node.name),
            on_contact=partial(early.reached, node),
            on_answer=partial(watcher.answered, node.name),
        )
        early.visited(node, done.contact)
        if done.dialled is not None:
            links[node.name] = done.dialled
            if not keep and not any(exercise.needs(node) for exercise in exercises):
                # Nobody needs it any more: its end goes on beside the others' beginnings.
                await links.pop(node.name).link.close()
        watcher.visited(node.name, done.contact)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(early.hold())
            for node in cluster:
                group.create_task(call(node))
        facts = replace(_facts(cluster, visits, probes), outcomes=early.outcomes)
        open_links = {name: dialled.link for name, dialled in links.items()}
        for subject in sorted(subjects, key=lambda subject: bool(subject.exercises)):
            for exercise in subject.exercises:
                if exercise.name in early.outcomes:
                    continue
                on_round = partial(watcher.round, subject.name)
                facts = await drill(exercise, facts, open_links, on_round=on_round, on_reply=watcher.replied)
            if exercises:
                # For the eye only, while others' exercises go on: rules may see more once all are held.
                watcher.judged(subject.name, subject.judge(facts), subject.untested(facts))
        by_subject = {subject.name: tuple(subject.judge(facts)) for subject in subjects}
        stories = tuple(story for subject in subjects for story in subject.stories)
        yield Report(facts=facts, by_subject=by_subject, seconds=monotonic() - began, stories=stories), links
    finally:
        await asyncio.gather(*(dialled.link.close() for dialled in links.values()))


class _EarlyExercises:
    """Holds the exercises that need only contacts, as soon as every node was reached or is known not to be."""

    def __init__(self, cluster: Cluster, subjects: Sequence[Subject], watcher: Watcher) -> None:
        self.outcomes: dict[str, Any] = {}
        self._cluster = cluster
        self._exercises = [(each.name, one) for each in subjects for one in each.exercises if one.early]
        self._watcher = watcher
        self._contacts: dict[str, Contact] = {}
        self._links: dict[str, Link] = {}
        self._met = asyncio.Event()

    def reached(self, node: Node, dialled: Dialled, contact: Contact) -> None:
        self._links[node.name] = dialled.link
        self.visited(node, contact)

    def visited(self, node: Node, contact: Contact) -> None:
        self._contacts[node.name] = contact
        if len(self._contacts) == len(self._cluster):
            self._met.set()

    async def hold(self) -> None:
        await self._met.wait()
        facts = Facts(cluster=self._cluster, contacts=self._contacts)
        for subject, exercise in self._exercises:
            on_round = partial(self._watcher.round, subject)
            facts = await drill(exercise, facts, self._links, on_round=on_round, on_reply=self._watcher.replied)
        self.outcomes |= facts.outcomes


def _asked(subjects: Sequence[Subject], *, quick: bool) -> Iterator[Subject]:
    """Each subject with what this check asks; one of which nothing is asked can't be found well, so it is left out."""
    for subject in subjects:
        probes = tuple(probe for probe in subject.probes if probe.quick or not quick)
        exercises = tuple(exercise for exercise in subject.exercises if exercise.quick or not quick)
        if probes or exercises or not (subject.probes or subject.exercises):
            yield replace(subject, probes=probes, exercises=exercises)


def _facts(cluster: Cluster, visits: Mapping[str, Visit], probes: Sequence[Probe[Any]]) -> Facts:
    return Facts(
        cluster=replace(cluster, nodes=tuple(visits[node.name].node for node in cluster)),
        contacts={node.name: visits[node.name].contact for node in cluster},
        answers={
            probe.name: {name: done.facts[probe.name] for name, done in visits.items() if probe.name in done.facts}
            for probe in probes
        },
        environments={node.name: found for node in cluster if (found := visits[node.name].environment) is not None},
    )
