"""Asking all nodes of a run what is to be seen there: out of band, at once, and without those that don't answer."""

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
# Beyond what a node may take: the way there and back, and a head that is busy.
PATIENCE_SECONDS = 1.5
# Of thousands of nodes, those that are furthest behind are asked, and some of the others.
MOST_NODES = 256
# NCCL's RAS asks all processes of a job whenever one is asked: two that answer are enough.
RAS_NODES = 2
_NO_PORT = 0


@dataclass(frozen=True, kw_only=True)
class CollectedEvidence:
    """What the nodes answered, as it came and as values, and why the others did not."""

    answers: Mapping[str, NodeAnswer] = field(default_factory=dict)
    snapshots: Mapping[str, NodeSnapshot] = field(default_factory=dict)
    unheard: Mapping[str, str] = field(default_factory=dict)


async def collect_evidence(
    plan: Plan, run: Run, holds: Mapping[str, NodeSession], *, brief: bool = False
) -> CollectedEvidence:
    """`brief` leaves out what takes time to watch: a rank that died is not seen to move any more."""
    parts = {part.node.name: part for part in plan.parts}
    nodes = _choose_nodes(plan, run, holds)
    unheard = {name: _explain_silence(holds.get(name)) for name in parts if name not in nodes}
    # Those that have come furthest: each would collect the same from all.
    collect = () if brief else nodes[-RAS_NODES:]
    questions = {
        name: {"brief": brief, "ras": name in collect, **_build_question(parts[name], plan, run)} for name in nodes
    }
    replies = await asyncio.gather(*(_ask_node(holds[name], questions[name]) for name in nodes))
    answers: dict[str, NodeAnswer] = {}
    for name, answer in zip(nodes, replies, strict=True):
        if isinstance(answer, str):
            unheard[name] = answer
        else:
            answers[name] = answer
    return _build_evidence(plan, answers, unheard)


async def collect_follow_up(
    collected: CollectedEvidence, evidence: Evidence, holds: Mapping[str, NodeSession]
) -> CollectedEvidence:
    """What the first answers left open, asked of those whom it concerns; their answers, completed."""
    open_queries = {name: doubt for name, doubt in build_follow_up_queries(evidence).items() if name in holds}

    async def ask(name: str, doubt: FollowUpQuery) -> NodeAnswer:
        before = collected.answers[name]
        question: dict[str, Any] = {"targets": [list(target) for target in doubt.targets], "names": sorted(doubt.names)}
        question["echoes"] = sorted(doubt.echoes)
        more = await _ask_node(holds[name], {"brief": True, "children": [], **question})
        return before if isinstance(more, str) else _merge_answers(before, more)

    replies = await asyncio.gather(*(ask(name, doubt) for name, doubt in open_queries.items()))
    return _build_evidence(
        evidence.plan, {**collected.answers, **dict(zip(open_queries, replies, strict=True))}, collected.unheard
    )


async def collect_death_evidence(
    collected: CollectedEvidence, plan: Plan, run: Run, holds: Mapping[str, NodeSession]
) -> CollectedEvidence:
    """What killed a rank may have held up its node's answer, too: such a node is asked once more, for itself only."""
    died = {child.node for child in run.generation.dead}
    parts = {part.node.name: part for part in plan.parts}

    def is_open(name: str) -> bool:
        replies = collected.snapshots.get(name)
        return (
            name in holds and holds[name].state is SessionState.CONNECTED and (replies is None or replies.cores is None)
        )

    again = [name for name in sorted(died) if name in parts and is_open(name)]
    replies = await asyncio.gather(*(_ask_node(holds[name], {"brief": True, "children": []}) for name in again))
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
    """The first answer with what the second one found out: connections, names and packets."""
    old, new = _get_section(before.told, "node"), _get_section(more.told, "node")
    dials = [row for node in (old, new) for row in (node["dials"] if isinstance(node.get("dials"), list) else ())]
    names = {**_get_section(old, "names"), **_get_section(new, "names")}
    node = {**old, "dials": dials, "names": names, "echoes": _get_section(new, "echoes")}
    return NodeAnswer(told={**before.told, "node": node}, offset=before.offset)


def _get_section(answer: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = answer.get(name)
    return section if isinstance(section, dict) else {}


def _choose_nodes(plan: Plan, run: Run, holds: Mapping[str, NodeSession]) -> Sequence[str]:
    def behind(part: NodePlan) -> int:
        children = (run.generation.children.get((part.node.name, start.child)) for start in part.starts)
        return min((child.phase if child is not None else Phase.WAITING for child in children), default=Phase.WAITING)

    connected = [
        part for part in plan.parts if part.node.name in holds and holds[part.node.name].state is SessionState.CONNECTED
    ]
    return [part.node.name for part in sorted(connected, key=behind)[:MOST_NODES]]


def _explain_silence(hold: NodeSession | None) -> str:
    if hold is None or hold.state is SessionState.LOST:
        return "the node is gone"
    return "no contact with the node" if hold.state is SessionState.DISCONNECTED else "not queried: too many nodes"


async def _ask_node(hold: NodeSession, question: Mapping[str, Any]) -> NodeAnswer | str:
    try:
        async with asyncio.timeout(WITHIN_SECONDS + PATIENCE_SECONDS):
            reply, offset = await hold.witness(WITHIN_SECONDS, **question)
    except TimeoutError:
        return f"no reply within {WITHIN_SECONDS + PATIENCE_SECONDS:g} s"
    except AboardError as error:
        return error.seen
    return NodeAnswer(told=reply if isinstance(reply, dict) else {}, offset=offset)


def _build_question(part: NodePlan, plan: Plan, run: Run) -> dict[str, Any]:
    """What only this run can tell its nodes to look at: its directories and, until all have met, where they meet."""
    paths = list(dict.fromkeys(start.cwd for start in part.starts if start.cwd))
    question: dict[str, Any] = {"paths": paths}
    phases = run.generation.phases
    if plan.master.port != _NO_PORT and any(count and phase < Phase.GROUP for phase, count in phases.items()):
        question["targets"] = [[plan.master.address, plan.master.port]]
        question["names"] = [plan.master.address]
    return question
