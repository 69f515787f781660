"""Builds a plan from the cluster, the request and the nodes' resources; never silently starts fewer ranks."""

from collections.abc import Mapping

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_resources import NodeResources
from aboard.core.cluster.node_sets import fold_names
from aboard.core.cluster.setup_commands import build_setup_words
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.plan import MasterAddress, NodePlan, Plan, Start, bind_directories
from aboard.core.plan.rank_variables import (
    RankLayout,
    build_node_env,
    build_task_env,
    build_torchrun_env,
    list_overridden_names,
)
from aboard.core.secrets.secret_names import list_secret_names
from aboard.core.text.input_text import format_count
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.usage import planning


def build_plan(
    cluster: Cluster, request: LaunchRequest, resources: Mapping[str, NodeResources], *, run: str, master: MasterAddress
) -> Plan:
    """Numbers ranks in the cluster's order, those of one node consecutively, as torchrun and DeepSpeed do."""
    counts = {node.name: count_ranks(node, request, resources[node.name]) for node in cluster}
    _refuse_impossible(cluster, request, counts)
    nodes = [node for node in cluster if counts[node.name]]
    world = sum(counts.values())
    parts, first = [], 0
    for group, node in enumerate(nodes):
        count = counts[node.name]
        layouts = [
            RankLayout(rank=first + local, world=world, local=local, local_world=count, group=group, groups=len(nodes))
            for local in range(count)
        ]
        starts = tuple(_build_start(request, node, resources[node.name], layout, master, run) for layout in layouts)
        parts.append(NodePlan(node=node, starts=starts))
        first += count
    plan = Plan(run=run, program=request.program, master=master, parts=tuple(parts), code=request.code)
    return plan if cluster.writes is None else bind_directories(plan, [cluster.writes.path])


def count_ranks(node: Node, request: LaunchRequest, resources: NodeResources) -> int:
    """One per picked slot, else per slot, else per accelerator; one on a CPU node without slots."""
    if node.slots == 0:
        return 0
    if request.ranks is not None:
        return request.ranks
    if node.picked is not None:
        return len(node.picked)
    return node.slots or resources.accelerators or 1


def find_rank_zero_node(cluster: Cluster) -> Node:
    """The node of rank 0."""
    return next((node for node in cluster if node.slots != 0), cluster.nodes[0])


def _refuse_impossible(cluster: Cluster, request: LaunchRequest, counts: Mapping[str, int]) -> None:
    problems = [
        *_find_node_problems(cluster, request, counts),
        *_find_slot_problems(cluster, counts),
        *_find_env_problems(cluster, request),
    ]
    if problems:
        raise InputError(planning.PLAN, problems)


def _find_node_problems(cluster: Cluster, request: LaunchRequest, counts: Mapping[str, int]) -> list[Problem]:
    used = sum(count > 0 for count in counts.values())
    if not used:
        seen = f"there are no slots on {fold_names(counts)}"
        return [Problem(where=cluster.source, seen=seen, fix=planning.PLAN.fix("no-slots"))]
    if request.nodes is not None and used != request.nodes:
        seen = f"{request.nodes} nodes were requested, but there are {used}: {fold_names(counts)}"
        fix = planning.PLAN.fix("nodes")
        return [Problem(where=cluster.source, seen=seen, fix=fix)]
    return []


def _find_slot_problems(cluster: Cluster, counts: Mapping[str, int]) -> list[Problem]:
    problems = []
    for node in cluster:
        most = len(node.picked) if node.picked is not None else node.slots
        if most is not None and counts[node.name] > most:
            seen = f"{node.name} has {format_count(most, 'slot')}, but {counts[node.name]} ranks were requested"
            problems.append(Problem(where=cluster.source, seen=seen, fix=planning.PLAN.fix("slots", most=most)))
    return problems


def _find_env_problems(cluster: Cluster, request: LaunchRequest) -> list[Problem]:
    first = find_rank_zero_node(cluster)
    own = (first.name, first.target, first.fabric_address, None)
    moved = [
        Problem(
            where=f"`env:` of {node.name}",
            seen=f"MASTER_ADDR is {node.env['MASTER_ADDR']}, but the node of rank 0 is {first.name}",
            fix=planning.PLAN.fix("master"),
        )
        for node in cluster
        if request.master_address is None and node.env.get("MASTER_ADDR") not in own
    ]
    sources = [("--env", request.env), *((f"`env:` of {node.name}", node.env) for node in cluster)]
    return [
        Problem(where=where, seen=f"{name} differs by rank, so Aboard sets it", fix=planning.PLAN.fix("env", name=name))
        for where, env in sources
        for name in list_overridden_names(env)
    ] + moved[:1]


def _build_start(
    request: LaunchRequest, node: Node, resources: NodeResources, layout: RankLayout, master: MasterAddress, run: str
) -> Start:
    env = {
        **build_node_env(node, resources, layout, request.threads),
        **node.env,
        **({} if node.container is None else node.container.env),
        **request.env,
        **build_torchrun_env(layout, master, run, restarts=request.restarts),
        **(build_task_env(layout) if request.slurm_tasks else {}),
    }
    return Start(
        child=str(layout.rank),
        argv=request.program.argv(node, layout.local),
        env=env,
        secrets=list_secret_names(env),
        cwd=node.workdir,
        rank=layout.rank,
        beacon=request.beacon,
        code=bool(request.code),
        container=node.container,
        setup=() if node.container is None else build_setup_words(node),
        cores=_choose_cores(request, node, resources, layout, env),
    )


# Programs and variables with which users bind ranks themselves.
_BINDING_PROGRAMS = ("numactl", "taskset", "hwloc-bind", "likwid-pin")
_BINDING_VARIABLES = frozenset({"GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND"})


def _choose_cores(
    request: LaunchRequest, node: Node, resources: NodeResources, layout: RankLayout, env: Mapping[str, str]
) -> tuple[int, ...]:
    """The cores beside this rank's GPU, unless the user binds ranks; with `--bind`, those of a NUMA node on CPUs, too.

    There, ranks are spread evenly in order.
    """
    own = request.program.target.rpartition("/")[2] in _BINDING_PROGRAMS or _BINDING_VARIABLES & set(env)
    if request.bind is False or (own and not request.bind):
        return ()
    slots = range(layout.local_world) if node.picked is None else node.picked
    if all(slot < len(resources.gpu_cores) for slot in slots):
        return resources.gpu_cores[slots[layout.local]]
    if not request.bind or not resources.memory_nodes:
        return ()
    return resources.memory_nodes[layout.local * len(resources.memory_nodes) // layout.local_world]
