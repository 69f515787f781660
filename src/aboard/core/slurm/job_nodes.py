"""Which nodes of a cluster belong to the Slurm job: srun reaches those, and their slots are the job's GPUs."""

from collections.abc import Sequence
from dataclasses import replace

from aboard.core.cluster.cluster import SLURM_JOB
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.node_sets import fold_names, split_node_set
from aboard.core.slurm.allocation import AllocatedNode, SlurmAllocation
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.slurm import allocation as diagnoses
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage.configuration import quote_doubly

# This option counts the GPUs of a whole step, so a step with it can have one node only.
ALONE_OPTION = "--gpus="
COMPONENT_OPTION = "--het-group="
NO_GPUS_OPTION = "--gres=none"


def format_job_source(allocation: SlurmAllocation) -> str:
    """`Cluster.source` of nodes that the job gave."""
    return f"{SLURM_JOB} {allocation.job}"


def assign_srun(nodes: Sequence[Node], allocation: SlurmAllocation, user: str) -> tuple[Node, ...]:
    """Marks the nodes of the job as reached by srun. Slots that the user set stay.

    Nodes with another user than `user` stay with ssh: srun can't change it.
    """
    return tuple(_assign_node(node, allocation, user) for node in nodes)


def reassign_recorded_nodes(nodes: Sequence[Node], allocation: SlurmAllocation | None) -> tuple[Node, ...]:
    """Nodes of an earlier job as they can be reached now: by srun if they belong to this job, else over ssh."""
    over_ssh = [
        replace(node, transport=TransportKind.SSH) if node.transport is TransportKind.SLURM else node for node in nodes
    ]
    return tuple(over_ssh) if allocation is None else assign_srun(over_ssh, allocation, "")


def refuse_mixed_nodes(nodes: Sequence[Node], allocation: SlurmAllocation) -> None:
    """Refuses nodes of which only some belong to the job."""
    inside = [node.name for node in nodes if node.transport is TransportKind.SLURM]
    outside = [node.name for node in nodes if node.transport is not TransportKind.SLURM]
    if not inside or not outside:
        return
    verb, other = ("belongs" if len(inside) == 1 else "belong"), ("does" if len(outside) == 1 else "do")
    named, others = escape_text(fold_names(inside)), escape_text(fold_names(outside))
    seen = f"{named} {verb} to {format_job_source(allocation)}, but {others} {other} not"
    fix = diagnoses.NODES.fix(nodes=quote_doubly("@".join(split_node_set(fold_names(inside)))))
    raise InputError(diagnoses.NODES, [Problem(where="cluster", seen=seen, fix=fix)])


def _assign_node(node: Node, allocation: SlurmAllocation, user: str) -> Node:
    found = allocation.find_node(node.name)
    if found is None or node.user not in {None, user}:
        return node
    address = node.address or (node.name if node.name != found.name else None)
    # In a job without any GPU, a node has no number of slots, as a machine without GPUs.
    job_slots = found.gpus if allocation.has_gpus else None
    # Port and user are ssh's.
    return replace(
        node,
        name=found.name,
        address=address,
        slots=job_slots if node.slots is None else node.slots,
        cores=found.cpus,
        step_options=_list_step_options(found, allocation),
        port=None,
        user=None,
        transport=TransportKind.SLURM,
    )


def _list_step_options(node: AllocatedNode, allocation: SlurmAllocation) -> tuple[str, ...]:
    """The options of a step that gives it all GPUs of the job on the node, whatever the job asked for per task.

    In a heterogeneous job, srun uses the first component unless told otherwise. In a job whose nodes have different
    numbers of GPUs, Slurm 22.05 refuses --gres with more than the fewest.
    """
    component = () if node.group is None else (f"{COMPONENT_OPTION}{node.group}",)
    if node.gpus is None:
        return component
    is_even = allocation.has_even_gpus(node.group)
    some = f"--gres=gpu:{node.gpus}" if is_even else f"{ALONE_OPTION}{node.gpus}"
    return (*component, some if node.gpus else NO_GPUS_OPTION)
