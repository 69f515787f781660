"""What to say of a job that fails or is slow, and what to type."""

from collections.abc import Sequence

from aboard.checks.network.mesh_probe import MESH
from aboard.checks.network.mesh_result import MeshResult
from aboard.checks.node_scripts import format_node_command, get_setup_lines
from aboard.core.cluster import node_sets
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Shell, chain_commands, format_shell

# A fault with two names is the link between them.
NODES_OF_LINK = 2
MAX_COMMANDS = 3


def describe_nodes(nodes: Sequence[str], all_nodes: Sequence[str]) -> str:
    """Where the job fails, as far as it was located."""
    if len(nodes) == NODES_OF_LINK:
        return f"between {nodes[0]} and {nodes[1]}"
    if len(all_nodes) <= 1:
        return f"on {node_sets.fold_names(nodes)}"
    if len(nodes) > NODES_OF_LINK:
        return f"on {node_sets.fold_names(nodes)}, in every subset tried"
    return f"with {nodes[0]} and succeeds without it"


def list_torch_commands(facts: Facts, names: Sequence[str]) -> list[Shell]:
    """Commands that import torch on these nodes the way their ranks do."""
    return [_format_torch_command(facts.cluster.node(name)) for name in names[:MAX_COMMANDS]]


def _format_torch_command(node: Node) -> Shell:
    steps = [format_shell("cd {folder}", folder=node.workdir)] if node.workdir else []
    run = format_shell("{python} -c 'import torch; print(torch.__version__)'", python=node.rank_python)
    return format_node_command(node, chain_commands(*steps, *get_setup_lines(node), run))


def find_interface(facts: Facts, nodes: Sequence[str]) -> str:
    """The interface that peers reach the first of these nodes on, as far as it is known."""
    mesh = MESH.outcome(facts)
    found = mesh.interfaces if isinstance(mesh, MeshResult) else {}
    return next((found[node] for node in nodes if node in found), "eth0")
