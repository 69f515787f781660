"""Applies a pasted command's settings to the nodes."""

from collections.abc import Sequence
from dataclasses import replace

from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.node_sets import fold_names
from aboard.core.launchers.deepspeed import NAME as DEEPSPEED
from aboard.core.launchers.launcher_command import LauncherCommand
from aboard.core.launchers.slurm.srun import SLURM_COMMANDS
from aboard.diagnoses import InputError, Problem
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
            fix = pasted_commands.SLOTS.fix()
            raise InputError(pasted_commands.SLOTS, [Problem(where=command.launcher, seen=seen, fix=fix)])
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


def _count_slots(node: Node, ranks: int | None) -> int | None:
    """In a Slurm job without GPUs, a node has as many slots as the command starts ranks there."""
    if node.transport is not TransportKind.SLURM or node.step_options or node.slots != 1:
        return node.slots
    return ranks or node.slots
