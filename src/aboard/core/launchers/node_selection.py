"""Applies a pasted command's settings to the nodes."""

from collections.abc import Sequence
from dataclasses import replace

from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.node_sets import fold_names
from aboard.core.launchers.deepspeed import NAME as DEEPSPEED
from aboard.core.launchers.launcher_command import LauncherCommand
from aboard.core.launchers.slurm.srun import SLURM_COMMANDS
from aboard.diagnoses import InputError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands

# Preflight compares them with each node's interfaces.
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def select_nodes(command: LauncherCommand, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The first N nodes if flags of DeepSpeed or Slurm give a number, each with its slots, setup lines and ssh port.

    Call it after the filters. Other launchers have no list of nodes to take the first ones from: their number must
    match, and the plan refuses any other.
    """
    if command.launcher in {DEEPSPEED, *SLURM_COMMANDS} and command.nodes:
        nodes = nodes[: command.nodes]
    if command.picked is not None:
        short = [node.name for node in nodes if node.slots is not None and max(command.picked) >= node.slots]
        if short:
            wanted = ",".join(map(str, command.picked))
            seen = (
                f"{fold_names(short)} has fewer than {max(command.picked) + 1} slots, but slots {wanted} were requested"
            )
            raise InputError.of(pasted_commands.SLOTS, command.launcher, seen)
    interfaces = {name: command.env[name] for name in _INTERFACES if name in command.env}
    return tuple(
        replace(
            node,
            env={**node.env, **interfaces},
            picked=node.picked if command.picked is None else command.picked,
            setup=(*node.setup, *command.setup),
            port=node.port or command.ssh_port,
            workdir=node.workdir or command.workdir,
            slots=_count_slots(node, command.ranks),
            container=command.container or node.container,
        )
        for node in nodes
    )


def apply_hostfile_slots(
    nodes: Sequence[Node], listed: Sequence[Node], hostfile: str
) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """Nodes that were named outside the pasted command get the slots that its hostfile lists; returns notes as well."""
    slots = {node.name: node.slots for node in listed}
    taken = [node for node in nodes if node.slots is None and node.name in slots]
    absent = [node.name for node in nodes if node.name not in slots]
    other = [node.name for node in nodes if node.slots is not None and slots.get(node.name, node.slots) != node.slots]
    shown = escape_text(hostfile)
    in_job = any(node.transport is TransportKind.SLURM for node in nodes)
    why = "they are those of the Slurm job" if in_job else "they were named before `--`"
    notes = [f"{shown} does not choose the nodes, since {why}."]
    if taken:
        notes.append(f"{fold_names(node.name for node in taken)}: slots as in {shown}.")
    if absent:
        notes.append(f"{shown} does not list {fold_names(absent)}, so it says nothing about slots there.")
    if other:
        notes.append(f"{fold_names(other)}: other slots than in {shown}, since they were given with the nodes.")
    return tuple(replace(node, slots=slots[node.name]) if node in taken else node for node in nodes), tuple(notes)


def _count_slots(node: Node, ranks: int | None) -> int | None:
    """In a Slurm job without GPUs, a node has as many slots as the command starts ranks there."""
    if node.transport is not TransportKind.SLURM or node.step_options or node.slots != 1:
        return node.slots
    return ranks or node.slots
