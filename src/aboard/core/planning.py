"""From cluster, request and seats to a plan; what can't be had is refused, never quietly made smaller."""

from collections.abc import Mapping

from aboard.core.cluster import Cluster
from aboard.core.contract import Berth, contract, overridden, surroundings
from aboard.core.node import Node
from aboard.core.nodeset import fold
from aboard.core.plan import Master, NodePlan, Plan, Start
from aboard.core.request import Request
from aboard.core.seat import Seat
from aboard.core.secrets import secret_names
from aboard.core.words import many
from aboard.diagnoses import InputError, Problem, planning


def plan(cluster: Cluster, request: Request, seats: Mapping[str, Seat], *, run: str, master: Master) -> Plan:
    """Ranks are numbered in the cluster's order, a node's own in a row, as torchrun and DeepSpeed do it."""
    counts = {node.name: ranks_of(node, request, seats[node.name]) for node in cluster}
    _refuse(cluster, request, counts)
    nodes = [node for node in cluster if counts[node.name]]
    world = sum(counts.values())
    parts, first = [], 0
    for group, node in enumerate(nodes):
        count = counts[node.name]
        berths = [
            Berth(rank=first + local, world=world, local=local, local_world=count, group=group, groups=len(nodes))
            for local in range(count)
        ]
        starts = tuple(_start(request, node, seats[node.name], berth, master, run) for berth in berths)
        parts.append(NodePlan(node=node, starts=starts))
        first += count
    return Plan(run=run, program=request.program, master=master, parts=tuple(parts), code=request.code)


def ranks_of(node: Node, request: Request, seat: Seat) -> int:
    """One for each picked slot, each slot, or each accelerator; a CPU node that says nothing takes one."""
    if node.slots == 0:
        return 0
    if request.ranks is not None:
        return request.ranks
    if node.picked is not None:
        return len(node.picked)
    return node.slots or seat.accelerators or 1


def first_with_ranks(cluster: Cluster) -> Node:
    """The node on which rank 0 will be."""
    return next((node for node in cluster if node.slots != 0), cluster.nodes[0])


def _refuse(cluster: Cluster, request: Request, counts: Mapping[str, int]) -> None:
    problems = [*_wrong_nodes(cluster, request, counts), *_wrong_slots(cluster, counts), *_wrong_env(cluster, request)]
    if problems:
        raise InputError(planning.PLAN, problems)


def _wrong_nodes(cluster: Cluster, request: Request, counts: Mapping[str, int]) -> list[Problem]:
    there = sum(count > 0 for count in counts.values())
    if not there:
        seen = f"no node of {fold(counts)} has a slot"
        return [Problem(where=cluster.source, seen=seen, fix=planning.PLAN.fix("no-slots"))]
    if request.nodes is not None and there != request.nodes:
        seen = f"{request.nodes} nodes were asked for, and there are {there}: {fold(counts)}"
        fix = planning.PLAN.fix("nodes")
        return [Problem(where=cluster.source, seen=seen, fix=fix)]
    held = [node.name for node in cluster if node.container is not None and counts[node.name]]
    if held:
        seen = f"ranks of {fold(held)} are to run in a container, which launch can't do yet"
        return [Problem(where=cluster.source, seen=seen, fix=planning.PLAN.fix("container"))]
    return []


def _wrong_slots(cluster: Cluster, counts: Mapping[str, int]) -> list[Problem]:
    problems = []
    for node in cluster:
        most = len(node.picked) if node.picked is not None else node.slots
        if most is not None and counts[node.name] > most:
            seen = f"{node.name} has {many(most, 'slot')}, and {counts[node.name]} ranks are asked for"
            problems.append(Problem(where=cluster.source, seen=seen, fix=planning.PLAN.fix("slots", most=most)))
    return problems


def _wrong_env(cluster: Cluster, request: Request) -> list[Problem]:
    given = [("--env", request.env), *((f"`env:` of {node.name}", node.env) for node in cluster)]
    return [
        Problem(
            where=where,
            seen=f"{name} is each rank's own, and is set by Aboard",
            fix=planning.PLAN.fix("env", name=name),
        )
        for where, env in given
        for name in overridden(env)
    ]


def _start(request: Request, node: Node, seat: Seat, berth: Berth, master: Master, run: str) -> Start:
    env = {
        **surroundings(node, seat, berth, request.threads),
        **node.env,
        **request.env,
        **contract(berth, master, run),
    }
    return Start(
        child=str(berth.rank),
        argv=request.program.argv(node, berth.local),
        env=env,
        secrets=secret_names(env),
        cwd=node.workdir,
        rank=berth.rank,
        beacon=request.beacon,
        code=bool(request.code),
        cores=_cores(seat, berth) if request.bind else (),
    )


def _cores(seat: Seat, berth: Berth) -> tuple[int, ...]:
    """The cores of the NUMA node that this rank falls to, ranks spread evenly and in order, as GPUs mostly are."""
    if not seat.memory_nodes:
        return ()
    return seat.memory_nodes[berth.local * len(seat.memory_nodes) // berth.local_world]
