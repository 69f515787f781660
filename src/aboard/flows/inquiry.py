"""Asking all nodes of a run what is to be seen there: out of band, at once, and without those that don't answer."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from aboard.core.doubts import Doubt, doubts
from aboard.core.evidence import Evidence
from aboard.core.look import Answer, witness_of
from aboard.core.phase import Phase
from aboard.core.plan import NodePlan, Plan
from aboard.core.run import Run
from aboard.core.witness import NodeWitness
from aboard.diagnoses import AboardError
from aboard.lazy import dataclass
from aboard.wires.hold import Hold, State

WITHIN_SECONDS = 2.0
# Beyond what a node may take: the way there and back, and a head that is busy.
PATIENCE_SECONDS = 1.5
# Of thousands of nodes, those that are furthest behind are asked, and some of the others.
MOST_NODES = 256
# NCCL's RAS asks all processes of a job whenever one is asked: two that answer are enough.
RAS_NODES = 2
_NO_PORT = 0


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What the nodes answered, as it came and as values, and why the others did not."""

    answers: Mapping[str, Answer] = field(default_factory=dict)
    witness: Mapping[str, NodeWitness] = field(default_factory=dict)
    unheard: Mapping[str, str] = field(default_factory=dict)


async def inquire(plan: Plan, run: Run, holds: Mapping[str, Hold], *, brief: bool = False) -> Heard:
    """`brief` leaves out what takes time to watch: a rank that died is not seen to move any more."""
    parts = {part.node.name: part for part in plan.parts}
    chosen = _chosen(plan, run, holds)
    unheard = {name: _unheld(holds.get(name)) for name in parts if name not in chosen}
    # Those that have come furthest: each would collect the same from all.
    collect = () if brief else chosen[-RAS_NODES:]
    asked = {name: {"brief": brief, "ras": name in collect, **_questions(parts[name], plan, run)} for name in chosen}
    told = await asyncio.gather(*(_ask(holds[name], asked[name]) for name in chosen))
    answers: dict[str, Answer] = {}
    for name, answer in zip(chosen, told, strict=True):
        if isinstance(answer, str):
            unheard[name] = answer
        else:
            answers[name] = answer
    return _heard(plan, answers, unheard)


async def inquire_again(heard: Heard, evidence: Evidence, holds: Mapping[str, Hold]) -> Heard:
    """What the first answers left open, asked of those whom it concerns; their answers, completed."""
    left = {name: doubt for name, doubt in doubts(evidence).items() if name in holds}

    async def ask(name: str, doubt: Doubt) -> Answer:
        before = heard.answers[name]
        asked: dict[str, Any] = {"targets": [list(target) for target in doubt.targets], "names": sorted(doubt.names)}
        asked["echoes"] = sorted(doubt.echoes)
        more = await _ask(holds[name], {"brief": True, "children": [], **asked})
        return before if isinstance(more, str) else _completed(before, more)

    told = await asyncio.gather(*(ask(name, doubt) for name, doubt in left.items()))
    return _heard(evidence.plan, {**heard.answers, **dict(zip(left, told, strict=True))}, heard.unheard)


async def inquire_of_deaths(heard: Heard, plan: Plan, run: Run, holds: Mapping[str, Hold]) -> Heard:
    """What killed a rank may have held up its node's answer, too: such a node is asked once more, for itself only."""
    died = {child.node for child in run.generation.dead}
    parts = {part.node.name: part for part in plan.parts}

    def is_open(name: str) -> bool:
        told = heard.witness.get(name)
        return name in holds and holds[name].state is State.HELD and (told is None or told.cores is None)

    again = [name for name in sorted(died) if name in parts and is_open(name)]
    told = await asyncio.gather(*(_ask(holds[name], {"brief": True, "children": []}) for name in again))
    answers, unheard = dict(heard.answers), dict(heard.unheard)
    for name, answer in zip(again, told, strict=True):
        if isinstance(answer, str):
            unheard.setdefault(name, answer)
        else:
            before = answers.get(name)
            ranks = {} if before is None else {"children": before.told.get("children")}
            answers[name] = Answer(told={**answer.told, **ranks}, offset=answer.offset)
            unheard.pop(name, None)
    return _heard(plan, answers, unheard)


def _heard(plan: Plan, answers: Mapping[str, Answer], unheard: Mapping[str, str]) -> Heard:
    return Heard(answers=answers, witness=witness_of(plan, answers), unheard=unheard)


def _completed(before: Answer, more: Answer) -> Answer:
    """The first answer with what the second one found out: connections, names and packets."""
    old, new = _part(before.told, "node"), _part(more.told, "node")
    dials = [row for node in (old, new) for row in (node["dials"] if isinstance(node.get("dials"), list) else ())]
    names = {**_part(old, "names"), **_part(new, "names")}
    node = {**old, "dials": dials, "names": names, "echoes": _part(new, "echoes")}
    return Answer(told={**before.told, "node": node}, offset=before.offset)


def _part(told: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = told.get(name)
    return found if isinstance(found, dict) else {}


def _chosen(plan: Plan, run: Run, holds: Mapping[str, Hold]) -> Sequence[str]:
    def behind(part: NodePlan) -> int:
        children = (run.generation.children.get((part.node.name, start.child)) for start in part.starts)
        return min((child.phase if child is not None else Phase.WAITING for child in children), default=Phase.WAITING)

    held = [part for part in plan.parts if part.node.name in holds and holds[part.node.name].state is State.HELD]
    return [part.node.name for part in sorted(held, key=behind)[:MOST_NODES]]


def _unheld(hold: Hold | None) -> str:
    if hold is None or hold.state is State.GONE:
        return "it is gone"
    return "no word comes from it" if hold.state is State.CUT else "it was not asked: there are too many"


async def _ask(hold: Hold, asked: Mapping[str, Any]) -> Answer | str:
    try:
        async with asyncio.timeout(WITHIN_SECONDS + PATIENCE_SECONDS):
            told, offset = await hold.witness(WITHIN_SECONDS, **asked)
    except TimeoutError:
        return f"it gave no answer within {WITHIN_SECONDS + PATIENCE_SECONDS:g} s"
    except AboardError as error:
        return error.seen
    return Answer(told=told if isinstance(told, dict) else {}, offset=offset)


def _questions(part: NodePlan, plan: Plan, run: Run) -> dict[str, Any]:
    """What only this run can tell its nodes to look at: its directories and, until all have met, where they meet."""
    paths = list(dict.fromkeys(start.cwd for start in part.starts if start.cwd))
    asked: dict[str, Any] = {"paths": paths}
    phases = run.generation.phases
    if plan.master.port != _NO_PORT and any(count and phase < Phase.GROUP for phase, count in phases.items()):
        asked["targets"] = [[plan.master.address, plan.master.port]]
        asked["names"] = [plan.master.address]
    return asked
