"""What to say of a job that fails or is slow, and what to type."""

import shlex
from collections.abc import Sequence

from aboard.checks.network.exercise import MESH
from aboard.checks.network.mesh import Mesh
from aboard.checks.scripted import typed
from aboard.core import nodeset
from aboard.core.facts import Facts

# A blame of two names is the link between them.
LINK = 2
_SHOWN = 3


def who(nodes: Sequence[str], all_nodes: Sequence[str]) -> str:
    """With whom, told as far as it is known."""
    if len(nodes) == LINK:
        return f"between {nodes[0]} and {nodes[1]}"
    if len(all_nodes) <= 1:
        return f"on {nodeset.fold(nodes)}"
    if len(nodes) > LINK:
        return f"on {nodeset.fold(nodes)}, in whichever halves it is tried"
    return f"with {nodes[0]} and goes well without it"


def fix_torch(facts: Facts, names: Sequence[str]) -> str:
    """Shows what the rank met, as it was started."""
    lines = []
    for name in names[:_SHOWN]:
        node = facts.cluster.node(name)
        steps = [*([f"cd {node.workdir}"] if node.workdir else []), *node.setup]
        steps.append(f"{shlex.quote(node.rank_python)} -c 'import torch; print(torch.__version__)'")
        lines.append(f"{typed(node, ' && '.join(steps))}    # must print a version; else `pip install torch` there")
    return "\n".join(lines)


def fix_failed(facts: Facts, nodes: Sequence[str]) -> str:
    """The network first, since it names ports and packets; then what a rank would use there."""
    where = nodeset.fold(nodes)
    return (
        "aboard check --only network    # here; tells dropped, refused and too large packets apart\n"
        f"sudo iptables -S INPUT; sudo nft list ruleset    # on {where}; peers need all ports from 1024 up\n"
        f"ip -br address    # on {where}; is {_cards(facts, nodes)} the interface that peers shall use?"
    )


def fix_slow(facts: Facts, nodes: Sequence[str]) -> str:
    """The card's speed, then its errors."""
    return "\n".join(
        f"sudo ethtool {_cards(facts, [node])} | grep -E 'Speed|Duplex'    # on {node}; then try another cable\n"
        f"ip -s link show {_cards(facts, [node])}    # on {node}; do errors or drops grow?"
        for node in nodes[:_SHOWN]
    )


def _cards(facts: Facts, nodes: Sequence[str]) -> str:
    mesh = facts.outcome(MESH)
    found = mesh.interfaces if isinstance(mesh, Mesh) else {}
    return next((found[node] for node in nodes if node in found), "eth0")
