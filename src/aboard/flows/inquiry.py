"""Asking all nodes of a run what is to be seen there: out of band, at once, and without those that don't answer."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aboard.core.doubts import Doubt, doubts
from aboard.core.errors import AboardError
from aboard.core.evidence import Evidence
from aboard.core.phase import Phase
from aboard.core.plan import NodePlan, Plan
from aboard.core.run import Run
from aboard.core.witness import NodeWitness
from aboard.core.witness_words import node_of
from aboard.wires.hold import Hold, State

WITHIN_SECONDS = 2.0
# Beyond what a node may take: the way there and back, and a head that is busy.
PATIENCE_SECONDS = 1.5
# Of thousands of nodes, those that are furthest behind are asked, and some of the others.
MOST_NODES = 256
_NO_PORT = 0


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What the nodes answered, and why the others did not; `raw` is as it came, for the record."""

    witness: Mapping[str, NodeWitness]
    unheard: Mapping[str, str]
    raw: Mapping[str, Any] = field(default_factory=dict)


async def inquire(plan: Plan, run: Run, holds: Mapping[str, Hold], *, brief: bool = False) -> Heard:
    """`brief` leaves out what takes time to watch: a rank that died is not seen to move any more."""
    parts = {part.node.name: part for part in plan.parts}
    chosen = _chosen(plan, run, holds)
    unheard = {name: _unheld(holds.get(name)) for name in parts if name not in chosen}
    asked = {name: {"brief": brief, **_questions(parts[name], plan, run)} for name in chosen}
    answers = await asyncio.gather(*(_ask(holds[name], parts[name], asked[name]) for name in chosen))
    witness, raw = {}, {}
    for name, answer in zip(chosen, answers, strict=True):
        if isinstance(answer, str):
            unheard[name] = answer
        else:
            witness[name], raw[name] = answer
    return Heard(witness=witness, unheard=unheard, raw=raw)


async def inquire_again(evidence: Evidence, holds: Mapping[str, Hold]) -> Mapping[str, NodeWitness]:
    """What the first answers left open, asked of those whom it concerns; their answers, completed."""
    left = doubts(evidence)
    parts = {part.node.name: part for part in evidence.plan.parts}

    async def ask(name: str, doubt: Doubt) -> NodeWitness:
        before = evidence.witness[name]
        asked: dict[str, Any] = {"targets": [list(target) for target in doubt.targets], "names": sorted(doubt.names)}
        asked["echoes"] = sorted(doubt.echoes)
        more = await _ask(holds[name], parts[name], {"brief": True, "children": [], **asked})
        if isinstance(more, str):
            return before
        told, _raw = more
        dials, names = {**before.dials, **told.dials}, {**before.names, **told.names}
        return replace(before, dials=dials, names=names, echoes=told.echoes)

    answers = await asyncio.gather(*(ask(name, doubt) for name, doubt in left.items() if name in holds))
    return {**evidence.witness, **dict(zip((name for name in left if name in holds), answers, strict=True))}


async def inquire_of_deaths(heard: Heard, plan: Plan, run: Run, holds: Mapping[str, Hold]) -> Heard:
    """What killed a rank may have held up its node's answer, too: such a node is asked once more, for itself only."""
    died = {child.node for child in run.generation.children.values() if child.dead}
    parts = {part.node.name: part for part in plan.parts}

    def is_open(name: str) -> bool:
        told = heard.witness.get(name)
        return name in holds and holds[name].state is State.HELD and (told is None or told.cores is None)

    again = [name for name in sorted(died) if name in parts and is_open(name)]
    answers = await asyncio.gather(*(_ask(holds[name], parts[name], {"brief": True, "children": []}) for name in again))
    witness, raw, unheard = dict(heard.witness), dict(heard.raw), dict(heard.unheard)
    for name, answer in zip(again, answers, strict=True):
        if isinstance(answer, str):
            unheard.setdefault(name, answer)
        else:
            before = witness.get(name)
            witness[name] = answer[0] if before is None else replace(answer[0], ranks=before.ranks)
            raw.setdefault(name, answer[1])
            unheard.pop(name, None)
    return Heard(witness=witness, unheard=unheard, raw=raw)


def _chosen(plan: Plan, run: Run, holds: Mapping[str, Hold]) -> Collection[str]:
    def behind(part: NodePlan) -> int:
        children = (run.generation.children.get((part.node.name, start.child)) for start in part.starts)
        return min((child.phase if child is not None else Phase.WAITING for child in children), default=Phase.WAITING)

    held = [part for part in plan.parts if part.node.name in holds and holds[part.node.name].state is State.HELD]
    return [part.node.name for part in sorted(held, key=behind)[:MOST_NODES]]


def _unheld(hold: Hold | None) -> str:
    if hold is None or hold.state is State.GONE:
        return "it is gone"
    return "no word comes from it" if hold.state is State.CUT else "it was not asked: there are too many"


async def _ask(hold: Hold, part: NodePlan, asked: Mapping[str, Any]) -> tuple[NodeWitness, Any] | str:
    ranks = {start.child: start.rank or 0 for start in part.starts}
    try:
        async with asyncio.timeout(WITHIN_SECONDS + PATIENCE_SECONDS):
            told, offset = await hold.witness(WITHIN_SECONDS, **asked)
    except TimeoutError:
        return f"it gave no answer within {WITHIN_SECONDS + PATIENCE_SECONDS:g} s"
    except AboardError as error:
        return error.seen
    return node_of(told, ranks, offset), {"told": told, "offset": offset, "ranks": ranks}


def _questions(part: NodePlan, plan: Plan, run: Run) -> dict[str, Any]:
    """What only this run can tell its nodes to look at: its directories and, until all have met, where they meet."""
    paths = list(dict.fromkeys(start.cwd for start in part.starts if start.cwd))
    asked: dict[str, Any] = {"paths": paths}
    phases = run.generation.phases
    if plan.master.port != _NO_PORT and any(count and phase < Phase.GROUP for phase, count in phases.items()):
        asked["targets"] = [[plan.master.address, plan.master.port]]
        asked["names"] = [plan.master.address]
    return asked
