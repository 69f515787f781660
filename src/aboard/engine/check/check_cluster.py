"""`aboard check`: probes all nodes in parallel, runs the multi-node probes, and judges the facts."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import Contact
from aboard.core.cluster.node import Node
from aboard.core.evidence.consequences import fold_consequences
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe
from aboard.core.probes.rank_environment import RankSpec
from aboard.diagnoses import Diagnosis, Finding, sort_by_severity
from aboard.doctor.host.login_node import LOGIN_NODE
from aboard.doctor.slurm import subject as slurm
from aboard.engine.check.check_observer import CheckObserver, NullCheckObserver
from aboard.engine.check.inspect_slurm import ask_munge, find_login_node, inspect_slurm
from aboard.engine.check.probe_node import ProbedNode, probe_node
from aboard.engine.check.run_multi_node_probe import run_multi_node_probe
from aboard.lazy_dataclass import dataclass
from aboard.transport.agent_link import AgentLink
from aboard.transport.node_dialer import DIAL_SECONDS, DialResult, NodeDialer, TransportFor, choose_transport
from aboard.transport.open_file_limit import raise_open_file_limit


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The facts and findings of a check, and how long it took."""

    facts: Facts
    by_subject: Mapping[str, tuple[Finding, ...]]
    seconds: float
    diagnoses: tuple[Diagnosis, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """Worst first, with consequences folded under the finding that explains them."""
        every = [finding for findings in self.by_subject.values() for finding in findings]
        # A subject may also find what belongs to another one that was not checked.
        found = [finding.diagnosis for finding in every]
        return sort_by_severity(fold_consequences(every, (*self.diagnoses, *found)))


async def check_cluster(
    cluster: Cluster,
    subjects: Sequence[Subject],
    *,
    quick: bool = False,
    spec: RankSpec | None = None,
    transport_for: TransportFor = choose_transport,
    check_observer: CheckObserver | None = None,
    dial_seconds: float = DIAL_SECONDS,
) -> CheckReport:
    """Probes all nodes in parallel; a slow or hostile node does not delay the others."""
    raise_open_file_limit(len(cluster))
    check_observer = check_observer or NullCheckObserver()
    dialer = NodeDialer(transport_for, seconds=dial_seconds)
    async with probe_cluster(cluster, subjects, dialer, quick=quick, spec=spec, check_observer=check_observer) as (
        report,
        _links,
    ):
        return report


@asynccontextmanager
async def probe_cluster(
    cluster: Cluster,
    subjects: Sequence[Subject],
    dialer: NodeDialer,
    *,
    quick: bool,
    check_observer: CheckObserver,
    spec: RankSpec | None = None,
    keep: bool = False,
) -> AsyncIterator[tuple[CheckReport, dict[str, DialResult]]]:
    """Yields the report and the open links, for reuse; links that the caller leaves in the dict are closed.

    Without `keep`, the link of a node that no multi-node probe needs is closed as soon as possible.
    """
    began = monotonic()
    subjects = list(_select_probes([each for each in subjects if each.applies(cluster)], quick=quick))
    probes = [probe for subject in subjects for probe in subject.probes]
    multi_probes = [multi_probe for subject in subjects for multi_probe in subject.multi_node_probes]
    check_observer.began(cluster, subjects)
    visits: dict[str, ProbedNode] = {}
    links: dict[str, DialResult] = {}
    early = _EarlyMultiNodeProbes(cluster, subjects, check_observer)

    async def call(node: Node) -> None:
        visits[node.name] = probed = await probe_node(
            dialer,
            node,
            probes,
            spec=spec,
            on_phase=partial(check_observer.dialling, node.name),
            on_met=partial(check_observer.asking, node.name),
            on_contact=partial(early.add_link, node),
            on_answer=partial(check_observer.answered, node.name),
        )
        early.add_contact(node, probed.contact)
        if probed.dialled is not None:
            links[node.name] = probed.dialled
            if not keep and not any(multi_probe.needs(node) for multi_probe in multi_probes):
                # No longer needed: close it while other nodes are still starting.
                await links.pop(node.name).link.close()
        check_observer.visited(node.name, probed.contact)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(early.run())
            group.create_task(_ask_slurm(cluster, subjects, early))
            for node in cluster:
                group.create_task(call(node))
        facts = replace(_build_facts(cluster, visits, probes), outcomes=early.outcomes)
        open_links = {name: dialled.link for name, dialled in links.items()}
        for subject in sorted(subjects, key=lambda subject: bool(subject.multi_node_probes)):
            for multi_probe in subject.multi_node_probes:
                if multi_probe.name in early.outcomes:
                    continue
                on_round = partial(check_observer.round, subject.name)
                facts = await run_multi_node_probe(
                    multi_probe, facts, open_links, on_round=on_round, on_reply=check_observer.replied
                )
            if multi_probes:
                # For display only, while other probes continue: rules may find more once all are done.
                check_observer.judged(subject.name, subject.judge(facts), subject.untested(facts))
        by_subject = {subject.name: tuple(subject.judge(facts)) for subject in subjects}
        diagnoses = tuple(diagnosis for subject in subjects for diagnosis in subject.diagnoses)
        yield CheckReport(facts=facts, by_subject=by_subject, seconds=monotonic() - began, diagnoses=diagnoses), links
    finally:
        await asyncio.gather(*(dialled.link.close() for dialled in links.values()))


class _EarlyMultiNodeProbes:
    """Runs the probes that need only contacts, as soon as every node is known to be reachable or not."""

    def __init__(self, cluster: Cluster, subjects: Sequence[Subject], check_observer: CheckObserver) -> None:
        self.outcomes: dict[str, Any] = {}
        self._cluster = cluster
        self._multi_probes = [(each.name, one) for each in subjects for one in each.multi_node_probes if one.early]
        self._check_observer = check_observer
        self._contacts: dict[str, Contact] = {}
        self._links: dict[str, AgentLink] = {}
        self._met = asyncio.Event()

    def add_link(self, node: Node, result: DialResult, contact: Contact) -> None:
        self._links[node.name] = result.link
        self.add_contact(node, contact)

    def add_contact(self, node: Node, contact: Contact) -> None:
        self._contacts[node.name] = contact
        if len(self._contacts) == len(self._cluster):
            self._met.set()

    async def wait_for_contacts(self) -> Mapping[str, Contact]:
        await self._met.wait()
        return self._contacts

    async def run(self) -> None:
        facts = Facts(cluster=self._cluster, contacts=await self.wait_for_contacts())
        for subject, multi_probe in self._multi_probes:
            on_round = partial(self._check_observer.round, subject)
            facts = await run_multi_node_probe(
                multi_probe, facts, self._links, on_round=on_round, on_reply=self._check_observer.replied
            )
        self.outcomes |= facts.outcomes


async def _ask_slurm(cluster: Cluster, subjects: Sequence[Subject], early: _EarlyMultiNodeProbes) -> None:
    if name := await find_login_node(cluster, os.environ):
        early.outcomes[LOGIN_NODE] = name
    if any(subject.name == slurm.SUBJECT.name for subject in subjects):
        told = await inspect_slurm(cluster, os.environ)
        munge = await ask_munge(await early.wait_for_contacts(), os.environ)
        early.outcomes[slurm.SUBJECT.name] = replace(told, munge=munge)


def _select_probes(subjects: Sequence[Subject], *, quick: bool) -> Iterator[Subject]:
    """Each subject with the probes of this check; a subject without any is left out, since it could not pass."""
    for subject in subjects:
        probes = tuple(probe for probe in subject.probes if probe.quick or not quick)
        multi_probes = tuple(multi_probe for multi_probe in subject.multi_node_probes if multi_probe.quick or not quick)
        if probes or multi_probes or not (subject.probes or subject.multi_node_probes):
            yield replace(subject, probes=probes, multi_node_probes=multi_probes)


def _build_facts(cluster: Cluster, visits: Mapping[str, ProbedNode], probes: Sequence[Probe[Any]]) -> Facts:
    return Facts(
        cluster=replace(cluster, nodes=tuple(visits[node.name].node for node in cluster)),
        contacts={node.name: visits[node.name].contact for node in cluster},
        answers={
            probe.name: {
                name: probed.facts[probe.name] for name, probed in visits.items() if probe.name in probed.facts
            }
            for probe in probes
        },
        environments={
            node.name: environment for node in cluster if (environment := visits[node.name].environment) is not None
        },
    )
