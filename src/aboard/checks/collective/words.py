"""What to say of a job that fails or is slow, and what to type."""

from collections.abc import Sequence

from aboard.checks.network.exercise import MESH
from aboard.checks.network.mesh import Mesh
from aboard.checks.scripted import setup_lines, typed
from aboard.core import nodeset
from aboard.core.facts import Facts
from aboard.core.node import Node
from aboard.diagnoses import Shell, chain, shell

# A blame of two names is the link between them.
LINK = 2
SHOWN = 3


def who(nodes: Sequence[str], all_nodes: Sequence[str]) -> str:
    """With whom, told as far as it is known."""
    if len(nodes) == LINK:
        return f"between {nodes[0]} and {nodes[1]}"
    if len(all_nodes) <= 1:
        return f"on {nodeset.fold(nodes)}"
    if len(nodes) > LINK:
        return f"on {nodeset.fold(nodes)}, in whichever halves it is tried"
    return f"with {nodes[0]} and goes well without it"


def tries_of_torch(facts: Facts, names: Sequence[str]) -> list[Shell]:
    """What shows what the rank met, as it was started."""
    return [_import_torch(facts.cluster.node(name)) for name in names[:SHOWN]]


def _import_torch(node: Node) -> Shell:
    steps = [shell("cd {folder}", folder=node.workdir)] if node.workdir else []
    run = shell("{python} -c 'import torch; print(torch.__version__)'", python=node.rank_python)
    return typed(node, chain(*steps, *setup_lines(node), run))


def card(facts: Facts, nodes: Sequence[str]) -> str:
    """The interface that peers reach the first of these nodes on, as far as it is known."""
    mesh = facts.outcome(MESH)
    found = mesh.interfaces if isinstance(mesh, Mesh) else {}
    return next((found[node] for node in nodes if node in found), "eth0")
