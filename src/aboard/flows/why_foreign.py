"""`aboard why --nodes` and `--pid`: a training that somebody else started, looked at until it is seen to stand."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from time import monotonic, time
from typing import Any

from aboard.core.cluster import Cluster
from aboard.core.doubts import doubts
from aboard.core.evidence import Evidence
from aboard.core.foreign import evidence_of, moved, waits
from aboard.core.nodeset import fold
from aboard.core.reach import Reached
from aboard.core.stranger import Stranger, decode_strangers
from aboard.core.verdict import Why
from aboard.core.witness import NodeWitness, decode_node
from aboard.core.worlds import World, worlds
from aboard.diagnoses import AboardError, Severity, WireError, commands
from aboard.flows.inquiry import RAS_NODES
from aboard.flows.visit import visit
from aboard.lazy import dataclass
from aboard.verdicts.foreign import judge_foreign
from aboard.wires.fleet import Fleet, WireOf, usual_wire
from aboard.wires.link import Link

# What an agent may take for one look, py-spy included, and how long its answer is waited for.
LOOK_SECONDS = 9.0
PATIENCE_SECONDS = 3.0
# Nobody told how long it has stood: it is watched for longer than a rank may idle before that is called stuck.
WATCH_SECONDS = 13.0
APART_SECONDS = 1.5


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """The training that was judged, what was seen of it last, and what it comes to."""

    world: World
    evidence: Evidence
    why: Why


async def why_foreign(cluster: Cluster, pids: Sequence[int] = (), *, wire_of: WireOf = usual_wire) -> Foreign:
    """These processes of the only node, else every training of ours on all nodes; raises where there is none."""
    began = monotonic()
    async with AsyncExitStack() as closing:
        asked = _Asked(cluster)
        await asked.dial(Fleet(wire_of), closing)
        told = await asked.judged(pids)
    return replace(told, why=replace(told.why, seconds=monotonic() - began))


class _Asked:
    """The nodes that answer, and what they have told so far."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._nodes = {node.name: node for node in cluster}
        self._links: dict[str, Link] = {}
        self._offsets: dict[str, float] = {}
        self._unheard: dict[str, str] = {}

    async def dial(self, fleet: Fleet, closing: AsyncExitStack) -> None:
        visits = await asyncio.gather(*(visit(fleet, node, ()) for node in self._cluster))
        for node, met in zip(self._cluster, visits, strict=True):
            if met.dialled is not None and isinstance(met.contact, Reached):
                closing.push_async_callback(met.dialled.link.close)
                self._links[node.name] = met.dialled.link
                self._offsets[node.name] = met.contact.clock_offset
            elif not isinstance(met.contact, Reached):
                self._unheard[node.name] = met.contact.said or met.contact.reason.value
        if not self._links:
            name, said = next(iter(self._unheard.items()))
            raise AboardError(
                commands.WHY_NO_NODE, f"none of the nodes answers; {name}: {said}", nodes=list(self._nodes)
            )

    async def judged(self, pids: Sequence[int]) -> Foreign:
        """Looks again, with what the last look left open, until there is a cause, or it moves, or the time is over."""
        first = await self._look({name: {"pids": list(pids)} if pids else {} for name in self._links})
        every = {name: decode_strangers(told.get("found"), self._offsets[name]) for name, told in first.items()}
        found = every if pids else _others_only(every)
        refuse(found, self._unheard)
        world, *others = worlds(found)
        asked = tuple(found) if not pids else ()
        began = still = monotonic()
        witness = self._witness(world, first, {})
        evidence = self._evidence(world, witness, 0.0)
        while True:
            before, looked = evidence, monotonic()
            answers = await self._look(self._again(world, before))
            world = self._left(world, answers)
            witness = self._witness(world, answers, witness)
            evidence = self._evidence(world, witness, 0.0)
            going = moved(before, evidence)
            still = looked if going else still
            evidence = replace(evidence, quiet=looked - still)
            why = judge_foreign(world, others, evidence, asked=asked)
            named = bool(why.findings) and why.findings[0].severity is Severity.BLOCK
            if named or going or not waits(evidence) or monotonic() - began >= WATCH_SECONDS:
                return Foreign(world=world, evidence=evidence, why=why)
            await asyncio.sleep(max(0.0, looked + APART_SECONDS - monotonic()))

    async def _look(self, questions: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """What the nodes answer; one that doesn't is told of as unheard, and what it said before stands."""

        async def ask(name: str, fields: Mapping[str, Any]) -> Mapping[str, Any] | str:
            try:
                return await self._links[name].ask(
                    "strangers", LOOK_SECONDS + PATIENCE_SECONDS, timeout=LOOK_SECONDS, **fields
                )
            except WireError as error:
                return error.seen.removeprefix(f"{name}: ")

        answers = await asyncio.gather(*(ask(name, fields) for name, fields in questions.items()))
        told: dict[str, Mapping[str, Any]] = {}
        for name, answer in zip(questions, answers, strict=True):
            if isinstance(answer, str):
                self._unheard[name] = answer
            else:
                self._unheard.pop(name, None)
                told[name] = answer
        return told

    def _again(self, world: World, evidence: Evidence) -> dict[str, Mapping[str, Any]]:
        """The same processes once more, and what `doubts` wants to be tried from where."""
        left = doubts(evidence)
        asked: dict[str, Mapping[str, Any]] = {}
        for name in world.nodes:
            fields: dict[str, Any] = {"pids": [int(pid) for pid in world.pids(name)]}
            fields["ras"] = name in world.nodes[-RAS_NODES:]
            if name in left:
                fields["targets"] = [list(target) for target in sorted(left[name].targets)]
                fields["names"] = sorted(left[name].names)
                fields["echoes"] = sorted(left[name].echoes)
            asked[name] = fields
        return asked

    def _left(self, world: World, answers: Mapping[str, Mapping[str, Any]]) -> World:
        """Without those that have ended since the last look."""
        for name, told in answers.items():
            found = decode_strangers(told.get("found"), 0.0)
            world = world.without(name, {each.pid for each in found if each.why})
        if not world.seats:
            raise AboardError(commands.WHY_NO_TRAINING, "all its processes ended while they were looked at", "ended")
        return world

    def _witness(
        self, world: World, answers: Mapping[str, Mapping[str, Any]], before: Mapping[str, NodeWitness]
    ) -> dict[str, NodeWitness]:
        found = dict(before)
        for name in world.nodes:
            if name in answers:
                told = decode_node(answers[name], world.pids(name), self._offsets[name])
                old = before.get(name, told)
                dials, names = {**old.dials, **told.dials}, {**old.names, **told.names}
                found[name] = replace(told, dials=dials, names=names, echoes=told.echoes or old.echoes)
        return found

    def _evidence(self, world: World, witness: Mapping[str, NodeWitness], quiet: float) -> Evidence:
        return evidence_of(world, self._nodes, witness, unheard=self._unheard, now=time(), quiet=quiet)


def _others_only(found: dict[str, tuple[Stranger, ...]]) -> dict[str, tuple[Stranger, ...]]:
    """Runs of our own are only told of where there is nothing else."""
    theirs = {name: tuple(each for each in strangers if not each.why) for name, strangers in found.items()}
    return theirs if any(theirs.values()) else found


def refuse(found: Mapping[str, Iterable[Stranger]], unheard: Mapping[str, str]) -> None:
    """Where there is nothing to look at, or nothing that may be looked at."""
    every = [(name, each) for name, strangers in found.items() for each in strangers]
    for name, each in every:
        if each.why == "absent":
            raise AboardError(commands.WHY_NO_PROCESS, f"there is no process {each.pid} on {name}")
        if each.why == "denied":
            seen = f"process {each.pid} on {name} is {each.user}'s, and may not be looked at"
            raise AboardError(commands.WHY_NOT_PERMITTED, seen, pid=each.pid)
        if each.why:
            seen = f"process {each.pid} on {name} belongs to {each.run}, a run of Aboard's own"
            raise AboardError(commands.WHY_OWN_RUN, seen, run=each.run)
    if not every:
        silent = f"; {fold(unheard)} did not answer" if unheard else ""
        seen = (
            f"no process of yours on {fold(found) or 'any node'} has RANK and WORLD_SIZE, and no launcher waits{silent}"
        )
        raise AboardError(commands.WHY_NO_TRAINING, seen, "none")
