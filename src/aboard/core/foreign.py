"""A training that somebody else started, as evidence: nobody told its phases, so connections and stacks do."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

from aboard.core.evidence import Evidence, View
from aboard.core.head import is_loopback
from aboard.core.node import Node
from aboard.core.phase import Phase
from aboard.core.plan import Master, NodePlan, Plan, Start
from aboard.core.program import Kind, Program
from aboard.core.run import Child, Place, Run
from aboard.core.stack import kind, main_thread
from aboard.core.witness import Joining, NodeWitness, RankWitness, Socket, split
from aboard.core.worlds import Seat, World

# What stands for the nodes of ranks that were not found; no host has such a name.
NOWHERE = "elsewhere"
# Cores of a process that works all the time, and of one that only waits: its threads may wake up now and then.
_BUSY, _IDLE = 0.2, 0.05
_WAITS = ("collective", "group", "store")


def evidence_of(
    world: World,
    nodes: Mapping[str, Node],
    witness: Mapping[str, NodeWitness],
    *,
    unheard: Mapping[str, str],
    now: float,
    quiet: float,
) -> Evidence:
    """As if it were a run of ours. Ranks that were not found have a place in it, and nothing is known of them."""
    plan = _plan(world, nodes)
    run = Run(id=plan.run)
    run.generation.at = world.began
    run.generation.places = {part.node.name: Place(state="held", at=world.began) for part in plan.parts}
    seen = {rank: witness[seat.node].ranks.get(rank) for rank, seat in world.seats.items() if seat.node in witness}
    for rank, phase in phases(world, seen).items():
        seat = world.seats[rank]
        child = Child(node=seat.node, name=str(rank), state="started", phase=phase)
        child.at = child.since = seat.process.began
        run.generation.children[seat.node, str(rank)] = child
        run.generation.phases[phase] += 1
    joined = {
        name: replace(told, ranks={rank: _joining(world, rank, each, run) for rank, each in told.ranks.items()})
        for name, told in witness.items()
    }
    return Evidence(plan=plan, run=run, now=now, witness=joined, unheard=unheard, quiet=quiet)


def phases(world: World, seen: Mapping[int, RankWitness | None]) -> dict[int, Phase]:
    """How far each has come: Python, torch, the store, the others."""
    ends = {
        (each.local, each.remote): rank
        for rank, told in seen.items()
        if told is not None
        for each in told.sockets
        if each.state == "ESTABLISHED" and world.port not in _ports(each)
    }
    found = {}
    for rank, seat in world.seats.items():
        told = seen.get(rank)
        sockets = told.sockets if told is not None else ()
        peers = any(ends.get((each.remote, each.local), rank) != rank for each in sockets)
        at = kind(main_thread(told.stack)) if told is not None else ""
        found[rank] = _phase(world, seat, at, stored=any(_stored(each, world.port) for each in sockets), peers=peers)
    return found


def waits(evidence: Evidence) -> bool:
    """Whether any rank waits for others, or has not met them yet: a longer look tells whether that ends."""
    waiting = (view for view in evidence.views if view.alive and (view.at in _WAITS or view.phase < Phase.GROUP))
    return len(evidence.views) > 1 and any(waiting)


def moved(before: Evidence, after: Evidence) -> bool:
    """Whether anything has happened between two looks.

    Whoever waits for others is at another place, or something was sent to it; whoever doesn't is elsewhere, or works a
    little. One that works all the time may go round in a loop: that is no sign of progress.
    """
    pairs = list(zip(before.views, after.views, strict=True))
    if any(one.phase != other.phase for one, other in pairs):
        return True
    seen = [(one, other) for one, other in pairs if one.frames and other.frames]
    for one, other in seen:
        if one.at in _WAITS:
            stands = one.frames == other.frames and _sent(one, before) == _sent(other, after)
        else:
            stands = _busy(one, other) or (one.frames == other.frames and _idle(one) and _idle(other))
        if not stands:
            return True
    return False


def _plan(world: World, nodes: Mapping[str, Node]) -> Plan:
    def place(rank: int) -> Node:
        if rank in world.seats:
            return nodes[world.seats[rank].node]
        # The first one is where all look for it.
        return Node(name=world.address) if rank == 0 and world.address else Node(name=NOWHERE)

    parts = []
    for node, ranks in groupby(range(world.size), key=place):
        starts = tuple(Start(child=str(rank), argv=(), rank=rank) for rank in ranks)
        parts.append(NodePlan(node=node, starts=starts))
    master = Master(node=place(0).name, address=world.address, port=world.port)
    return Plan(run="foreign", program=Program(kind=Kind.PROGRAM, target=world.what), master=master, parts=tuple(parts))


def _phase(world: World, seat: Seat, at: str, *, stored: bool, peers: bool) -> Phase:
    if not seat.process.torch and not world.launching:
        return Phase.PYTHON
    if world.size == 1 and not world.launching:
        return Phase.STEPS
    if peers and at not in ("store", "group"):
        return Phase.STEPS
    if at == "collective" and not world.launching:
        # The first one makes the connections that it needs.
        return Phase.GROUP
    return Phase.STORE if stored or peers else Phase.TORCH


def _joining(world: World, rank: int, seen: RankWitness, run: Run) -> RankWitness:
    """What a beacon would tell of one that is on its way to the store, or waits there."""
    seat = world.seats[rank]
    phase = run.generation.children[seat.node, str(rank)].phase
    calls = any(each.state == "SYN_SENT" and split(each.remote)[1] == world.port for each in seen.sockets)
    inside = kind(main_thread(seen.stack)) in ("store", "group")
    if phase >= Phase.GROUP or not world.port or not (calls or inside or phase is Phase.STORE or world.launching):
        return seen
    process = seat.process
    asked = Joining(host=process.address, port=process.port, world=world.size, master=process.hosts)
    return replace(seen, joining=asked)


def _stored(each: Socket, port: int) -> bool:
    """Whether it is a connection to the store, or the store itself."""
    if each.state == "LISTEN":
        return split(each.local)[1] == port
    return each.state == "ESTABLISHED" and split(each.remote)[1] == port


def _sent(view: View, evidence: Evidence) -> dict[int, int]:
    """What went out to each of the others, without what was only sent again; the store is asked now and then."""
    sockets = view.seen.sockets if view.seen is not None else ()
    return {
        each.inode: (each.segments or 0) - (each.losses or 0)
        for each in sockets
        if each.state == "ESTABLISHED" and evidence.plan.master.port not in _ports(each) and _ours(each, evidence)
    }


def _busy(*looks: View) -> bool:
    return all(_cpu(view) >= _BUSY for view in looks)


def _idle(view: View) -> bool:
    return _cpu(view) < _IDLE


def _cpu(view: View) -> float:
    return view.seen.process.cpu if view.seen is not None and view.seen.process is not None else 0.0


def _ours(each: Socket, evidence: Evidence) -> bool:
    host = split(each.remote)[0]
    return is_loopback(host) or host in evidence.owners


def _ports(each: Socket) -> tuple[int, int]:
    return split(each.local)[1], split(each.remote)[1]
