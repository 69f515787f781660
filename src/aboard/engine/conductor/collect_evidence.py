"""Queries all nodes of a run for snapshots, in parallel and out of band; nodes that don't respond are skipped."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from aboard.core.evidence.follow_up_queries import FollowUpQuery, build_follow_up_queries
from aboard.core.evidence.node_snapshot import NodeSnapshot
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.snapshot import NodeAnswer, decode_answers
from aboard.core.plan.plan import NodePlan, Plan
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_state import Run
from aboard.diagnoses import AboardError
from aboard.lazy_dataclass import dataclass
from aboard.transport.node_session import NodeSession, SessionState

WITHIN_SECONDS = 2.0
# Added to the node's own limit: the round trip, and a busy head.
PATIENCE_SECONDS = 1.5
# In larger clusters, the nodes that are furthest behind are queried first, up to this many.
MOST_NODES = 256
# NCCL's RAS queries all processes of a job through any one of them: two nodes are enough.
RAS_NODES = 2
_NO_PORT = 0


@dataclass(frozen=True, kw_only=True)
class CollectedEvidence:
    """The nodes' replies, raw and decoded, and for each other node why there is none."""

    answers: Mapping[str, NodeAnswer] = field(default_factory=dict)
    snapshots: Mapping[str, NodeSnapshot] = field(default_factory=dict)
    unheard: Mapping[str, str] = field(default_factory=dict)


async def collect_evidence(
    plan: Plan, run: Run, sessions: Mapping[str, NodeSession], *, brief: bool = False
) -> CollectedEvidence:
    """Queries the nodes; `brief` skips probes that observe over time, which say nothing about a dead rank."""
    parts = {part.node.name: part for part in plan.parts}
    nodes = _choose_nodes(plan, run, sessions)
    unheard = {name: _explain_silence(sessions.get(name)) for name in parts if name not in nodes}
    # The nodes that are furthest ahead; each of them would collect the same from all.
    collect = () if brief else nodes[-RAS_NODES:]
    questions = {
        name: {"brief": brief, "ras": name in collect, **_build_question(parts[name], plan, run)} for name in nodes
    }
    replies = await asyncio.gather(*(_ask_node(sessions[name], questions[name]) for name in nodes))
    answers: dict[str, NodeAnswer] = {}
    for name, answer in zip(nodes, replies, strict=True):
        if isinstance(answer, str):
            unheard[name] = answer
        else:
            answers[name] = answer
    return _build_evidence(plan, answers, unheard)


async def collect_follow_up(
    collected: CollectedEvidence, evidence: Evidence, sessions: Mapping[str, NodeSession]
) -> CollectedEvidence:
    """Sends the follow-up queries that the first replies call for, and merges the new replies into them."""
    open_queries = {name: doubt for name, doubt in build_follow_up_queries(evidence).items() if name in sessions}

    async def ask(name: str, query: FollowUpQuery) -> NodeAnswer:
        before = collected.answers[name]
        question: dict[str, Any] = {"targets": [list(target) for target in query.targets], "names": sorted(query.names)}
        question["echoes"] = sorted(query.echoes)
        more = await _ask_node(sessions[name], {"brief": True, "children": [], **question})
        return before if isinstance(more, str) else _merge_answers(before, more)

    replies = await asyncio.gather(*(ask(name, doubt) for name, doubt in open_queries.items()))
    return _build_evidence(
        evidence.plan, {**collected.answers, **dict(zip(open_queries, replies, strict=True))}, collected.unheard
    )


async def collect_death_evidence(
    collected: CollectedEvidence, plan: Plan, run: Run, sessions: Mapping[str, NodeSession]
) -> CollectedEvidence:
    """Queries the nodes of dead ranks again where the first reply is missing or incomplete, without their ranks.

    Whatever killed the rank may have delayed its node's reply as well.
    """
    died = {child.node for child in run.generation.dead}
    parts = {part.node.name: part for part in plan.parts}

    def is_open(name: str) -> bool:
        replies = collected.snapshots.get(name)
        return _is_connected(sessions.get(name)) and (replies is None or replies.cores is None)

    again = [name for name in sorted(died) if name in parts and is_open(name)]
    replies = await asyncio.gather(*(_ask_node(sessions[name], {"brief": True, "children": []}) for name in again))
    answers, unheard = dict(collected.answers), dict(collected.unheard)
    for name, answer in zip(again, replies, strict=True):
        if isinstance(answer, str):
            unheard.setdefault(name, answer)
        else:
            before = answers.get(name)
            ranks = {} if before is None else {"children": before.told.get("children")}
            answers[name] = NodeAnswer(told={**answer.told, **ranks}, offset=answer.offset)
            unheard.pop(name, None)
    return _build_evidence(plan, answers, unheard)


def _build_evidence(plan: Plan, answers: Mapping[str, NodeAnswer], unheard: Mapping[str, str]) -> CollectedEvidence:
    return CollectedEvidence(answers=answers, snapshots=decode_answers(plan, answers), unheard=unheard)


def _merge_answers(before: NodeAnswer, more: NodeAnswer) -> NodeAnswer:
    """The first reply, extended by the connections, names and echoes of the second."""
    old, new = _get_section(before.told, "node"), _get_section(more.told, "node")
    dials = [row for node in (old, new) for row in (node["dials"] if isinstance(node.get("dials"), list) else ())]
    names = {**_get_section(old, "names"), **_get_section(new, "names")}
    node = {**old, "dials": dials, "names": names, "echoes": _get_section(new, "echoes")}
    return NodeAnswer(told={**before.told, "node": node}, offset=before.offset)


def _get_section(answer: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = answer.get(name)
    return section if isinstance(section, dict) else {}


def _choose_nodes(plan: Plan, run: Run, sessions: Mapping[str, NodeSession]) -> Sequence[str]:
    def behind(node_plan: NodePlan) -> int:
        children = (run.generation.children.get((node_plan.node.name, start.child)) for start in node_plan.starts)
        return min((child.phase if child is not None else Phase.WAITING for child in children), default=Phase.WAITING)

    connected = [part for part in plan.parts if _is_connected(sessions.get(part.node.name))]
    return [part.node.name for part in sorted(connected, key=behind)[:MOST_NODES]]


def _is_connected(session: NodeSession | None) -> bool:
    return session is not None and session.state is SessionState.CONNECTED


def _explain_silence(session: NodeSession | None) -> str:
    if session is None or session.state is SessionState.LOST:
        return "the node was lost"
    return "no contact with the node" if session.state is SessionState.DISCONNECTED else "not queried: too many nodes"


async def _ask_node(session: NodeSession, question: Mapping[str, Any]) -> NodeAnswer | str:
    try:
        async with asyncio.timeout(WITHIN_SECONDS + PATIENCE_SECONDS):
            reply, offset = await session.request_snapshot(WITHIN_SECONDS, **question)
    except TimeoutError:
        return f"no reply within {WITHIN_SECONDS + PATIENCE_SECONDS:g} s"
    except AboardError as error:
        return error.seen
    return NodeAnswer(told=reply if isinstance(reply, dict) else {}, offset=offset)


def _build_question(node_plan: NodePlan, plan: Plan, run: Run) -> dict[str, Any]:
    """The run-specific query fields: working directories and, until all ranks have joined, the master address."""
    paths = list(dict.fromkeys(start.cwd for start in node_plan.starts if start.cwd))
    question: dict[str, Any] = {"paths": paths}
    phases = run.generation.phases
    if plan.master.port != _NO_PORT and any(count and phase < Phase.GROUP for phase, count in phases.items()):
        question["targets"] = [[plan.master.address, plan.master.port]]
        question["names"] = [plan.master.address]
    return question
