"""`aboard why --nodes` and `--pid`: observes an external training job until the cause of a stall is clear."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from time import monotonic, time
from typing import Any

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import ReachedNode
from aboard.core.cluster.node_sets import fold_names
from aboard.core.evidence.external_evidence import build_external_evidence, has_moved, has_waiting_ranks
from aboard.core.evidence.external_jobs import ExternalJob, group_external_jobs
from aboard.core.evidence.external_process import ExternalJobProcess, decode_external_processes
from aboard.core.evidence.follow_up_queries import build_follow_up_queries
from aboard.core.evidence.node_snapshot import NodeSnapshot, decode_node_snapshot
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import Judgement
from aboard.diagnoses import AboardError, Severity, TransportError
from aboard.diagnoses.usage import commands
from aboard.doctor.external_jobs.rules import judge_external_job
from aboard.engine.check.probe_node import probe_node
from aboard.engine.conductor.collect_evidence import RAS_NODES
from aboard.lazy_dataclass import dataclass
from aboard.transport.agent_link import AgentLink
from aboard.transport.node_dialer import NodeDialer, TransportFor, choose_transport

# How long an agent may take for one snapshot, including py-spy, and how much longer to wait for its reply.
SNAPSHOT_SECONDS = 9.0
PATIENCE_SECONDS = 3.0
# How long it has stalled is unknown: observe it for longer than a rank may idle before it counts as stuck.
WATCH_SECONDS = 13.0
APART_SECONDS = 1.5


@dataclass(frozen=True, kw_only=True)
class ExternalJobVerdict:
    """The job that was judged, the last evidence, and the judgement."""

    world: ExternalJob
    evidence: Evidence
    why: Judgement


async def diagnose_external_job(
    cluster: Cluster, pids: Sequence[int] = (), *, transport_for: TransportFor = choose_transport
) -> ExternalJobVerdict:
    """Diagnoses these processes of a single node, or else the user's training jobs on all nodes; raises if none."""
    began = monotonic()
    async with AsyncExitStack() as closing:
        inspector = _ExternalJobInspector(cluster)
        await inspector.dial(NodeDialer(transport_for), closing)
        verdict = await inspector.judge(pids)
    return replace(verdict, why=replace(verdict.why, seconds=monotonic() - began))


class _ExternalJobInspector:
    """Takes snapshots of an external job on all nodes that respond."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nodes = {node.name: node for node in cluster}
        self._links: dict[str, AgentLink] = {}
        self._offsets: dict[str, float] = {}
        self._unheard: dict[str, str] = {}

    async def dial(self, dialer: NodeDialer, closing: AsyncExitStack) -> None:
        visits = await asyncio.gather(*(probe_node(dialer, node, ()) for node in self._cluster))
        for node, probed in zip(self._cluster, visits, strict=True):
            if probed.dialled is not None and isinstance(probed.contact, ReachedNode):
                closing.push_async_callback(probed.dialled.link.close)
                self._links[node.name] = probed.dialled.link
                self._offsets[node.name] = probed.contact.clock_offset
            elif not isinstance(probed.contact, ReachedNode):
                self._unheard[node.name] = probed.contact.said or probed.contact.reason.value
        if not self._links:
            name, reason = next(iter(self._unheard.items()))
            raise AboardError(commands.WHY_NO_NODE, f"no node responds; {name}: {reason}", nodes=list(self._nodes))

    async def judge(self, pids: Sequence[int]) -> ExternalJobVerdict:
        """Repeats snapshots, with follow-up queries, until there is a cause, the job progresses, or time is up."""
        first = await self._query_nodes({name: {"pids": list(pids)} if pids else {} for name in self._links})
        all_processes = {
            name: decode_external_processes(answer.get("found"), self._offsets[name]) for name, answer in first.items()
        }
        processes = all_processes if pids else _drop_own_runs(all_processes)
        require_inspectable(processes, self._unheard)
        world, *others = group_external_jobs(processes)
        searched_nodes = tuple(processes) if not pids else ()
        began = still = monotonic()
        snapshots = self._decode_snapshots(world, first, {})
        evidence = self._build_evidence(world, snapshots, 0.0)
        while True:
            before, snapshot_time = evidence, monotonic()
            answers = await self._query_nodes(self._build_queries(world, before))
            world = self._drop_exited(world, answers)
            snapshots = self._decode_snapshots(world, answers, snapshots)
            evidence = self._build_evidence(world, snapshots, 0.0)
            going = has_moved(before, evidence)
            still = snapshot_time if going else still
            evidence = replace(evidence, quiet=snapshot_time - still)
            why = judge_external_job(world, others, evidence, nodes=searched_nodes)
            named = bool(why.findings) and why.findings[0].severity is Severity.BLOCK
            if named or going or not has_waiting_ranks(evidence) or monotonic() - began >= WATCH_SECONDS:
                return ExternalJobVerdict(world=world, evidence=evidence, why=why)
            await asyncio.sleep(max(0.0, snapshot_time + APART_SECONDS - monotonic()))

    async def _query_nodes(self, questions: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """The nodes' replies; a node without one is noted in `_unheard`, and its earlier snapshot stays valid."""

        async def ask(name: str, fields: Mapping[str, Any]) -> Mapping[str, Any] | str:
            try:
                return await self._links[name].ask(
                    "strangers", SNAPSHOT_SECONDS + PATIENCE_SECONDS, timeout=SNAPSHOT_SECONDS, **fields
                )
            except TransportError as error:
                return error.seen.removeprefix(f"{name}: ")

        answers = await asyncio.gather(*(ask(name, fields) for name, fields in questions.items()))
        replies: dict[str, Mapping[str, Any]] = {}
        for name, answer in zip(questions, answers, strict=True):
            if isinstance(answer, str):
                self._unheard[name] = answer
            else:
                self._unheard.pop(name, None)
                replies[name] = answer
        return replies

    def _build_queries(self, job: ExternalJob, evidence: Evidence) -> dict[str, Mapping[str, Any]]:
        """Queries for the same processes again, with the follow-up queries for each node."""
        follow_ups = build_follow_up_queries(evidence)
        questions: dict[str, Mapping[str, Any]] = {}
        for name in job.nodes:
            fields: dict[str, Any] = {"pids": [int(pid) for pid in job.pids(name)]}
            fields["ras"] = name in job.nodes[-RAS_NODES:]
            if name in follow_ups:
                fields["targets"] = [list(target) for target in sorted(follow_ups[name].targets)]
                fields["names"] = sorted(follow_ups[name].names)
                fields["echoes"] = sorted(follow_ups[name].echoes)
            questions[name] = fields
        return questions

    def _drop_exited(self, job: ExternalJob, answers: Mapping[str, Mapping[str, Any]]) -> ExternalJob:
        """The job without the processes that have exited since the last snapshot."""
        for name, answer in answers.items():
            processes = decode_external_processes(answer.get("found"), 0.0)
            job = job.without(name, {each.pid for each in processes if each.why})
        if not job.ranks:
            raise AboardError(
                commands.WHY_NO_TRAINING, "all processes of the job exited during the inspection", "ended"
            )
        return job

    def _decode_snapshots(
        self, job: ExternalJob, answers: Mapping[str, Mapping[str, Any]], before: Mapping[str, NodeSnapshot]
    ) -> dict[str, NodeSnapshot]:
        snapshots = dict(before)
        for name in job.nodes:
            if name in answers:
                snapshot = decode_node_snapshot(answers[name], job.pids(name), self._offsets[name])
                old = before.get(name, snapshot)
                dials, names = {**old.dials, **snapshot.dials}, {**old.names, **snapshot.names}
                snapshots[name] = replace(snapshot, dials=dials, names=names, echoes=snapshot.echoes or old.echoes)
        return snapshots

    def _build_evidence(self, job: ExternalJob, snapshots: Mapping[str, NodeSnapshot], quiet: float) -> Evidence:
        return build_external_evidence(job, self._nodes, snapshots, unheard=self._unheard, now=time(), quiet=quiet)


def _drop_own_runs(processes: dict[str, tuple[ExternalJobProcess, ...]]) -> dict[str, tuple[ExternalJobProcess, ...]]:
    """Drops runs of Aboard's own, unless there is nothing else to report."""
    theirs = {name: tuple(each for each in found if not each.why) for name, found in processes.items()}
    return theirs if any(theirs.values()) else processes


def require_inspectable(processes: Mapping[str, Iterable[ExternalJobProcess]], unheard: Mapping[str, str]) -> None:
    """Raises if there is no process to inspect, or no permission to inspect it."""
    every = [(name, each) for name, found in processes.items() for each in found]
    for name, each in every:
        if each.why == "absent":
            raise AboardError(commands.WHY_NO_PROCESS, f"there is no process {each.pid} on {name}")
        if each.why == "denied":
            seen = f"process {each.pid} on {name} belongs to {each.user}, and you have no permission to inspect it"
            raise AboardError(commands.WHY_NOT_PERMITTED, seen, pid=each.pid)
        if each.why:
            seen = f"process {each.pid} on {name} belongs to {each.run}, a run that Aboard started"
            raise AboardError(commands.WHY_OWN_RUN, seen, run=each.run)
    if not every:
        silent = f"; {fold_names(unheard)} did not respond" if unheard else ""
        seen = (
            f"no process of yours on {fold_names(processes) or 'any node'} has RANK and WORLD_SIZE, and no"
            f" launcher is waiting{silent}"
        )
        raise AboardError(commands.WHY_NO_TRAINING, seen, "none")
