"""The text of a new aboard.yaml: the nodes, what was found on them, and common settings as comments."""

from itertools import groupby
from typing import TYPE_CHECKING

from aboard.core.cluster.discovery import describe_node, list_common_facts
from aboard.core.cluster.node_sets import fold_names, split_node_set

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aboard.config.node_entries import NodeEntry
    from aboard.core.cluster.discovery import DiscoveredCluster, DiscoveredNode

_TOP = """\
# The nodes of this project, from {source}. `aboard init --schema` lists every key.
cluster:
  nodes:
"""

_REST = """
  # Defaults for all nodes; a node's own entry overrides them:
  # user: alice                              # default: ssh's own configuration
  # python: /opt/venv/bin/python             # default: the active environment
  # workdir: /home/alice/project             # where ranks start
  # fabric_address: "{name}i"                # the node's name for training traffic
"""
_ENV = "  # env: {NCCL_DEBUG: INFO}\n"
_SETUP = "  # setup: [module load cuda, . /opt/venv/bin/activate]\n"
_CONTAINER = "  # container: {runtime: apptainer, image: /data/train.sif}  # what ranks run in\n"
_SLOTS = "  # slots: 8                                 # accelerators to use on each node\n"
_RUN = """
# What the run writes; `aboard check` verifies that there is enough space:
# run: {output: /data/out, writes: 200GB}
"""


def format_starter_file(entries: "Sequence[NodeEntry]", cluster: "DiscoveredCluster") -> str:
    """A file that the loader accepts as it is, and with any of its settings uncommented."""
    nodes = {node.name: node for node in cluster.nodes}
    slots = {entry.name: _choose_slots(entry, nodes[entry.name]) for entry in entries}
    facts = "".join(f"  # - {line}\n" for line in list_common_facts(cluster))
    heading = f"\n  # Found on {fold_names(node.name for node in cluster.reached)}:\n" if facts else ""
    return "".join(
        [
            _TOP.format(source=cluster.source),
            *_format_node_lines(entries, slots, nodes),
            heading,
            facts,
            _REST,
            _format_environment(cluster),
            _SETUP,
            _CONTAINER,
            _SLOTS if None in slots.values() else "",
            _RUN,
        ]
    )


def _choose_slots(entry: "NodeEntry", node: "DiscoveredNode") -> int | None:
    """The slots that the user wrote, or the number of GPUs; CPU nodes get none."""
    slots: int | None = entry.settings.get("slots")
    return slots if slots is not None else len(node.gpus or ()) or None


def _format_node_lines(
    entries: "Sequence[NodeEntry]", slots: "Mapping[str, int | None]", nodes: "Mapping[str, DiscoveredNode]"
) -> "Iterator[str]":
    """One line for each sequence of nodes that are alike, in order; comments are aligned."""
    lines: list[tuple[str, str]] = []
    for (user, count, found), alike in groupby(
        entries, key=lambda entry: (entry.settings.get("user"), slots[entry.name], describe_node(nodes[entry.name]))
    ):
        for part in split_node_set(fold_names(entry.name for entry in alike)):
            text = (f"{user}@" if user else "") + part + (f" slots={count}" if count is not None else "")
            # True after `aboard trust`, too.
            lines.append((f'    - "{text}"', found.replace("not reached: ", "aboard init did not reach it: ")))
    width = max(len(line) for line, _comment in lines)
    yield from (f"{line:{width}}  # {comment}\n" for line, comment in lines)


def _format_environment(cluster: "DiscoveredCluster") -> str:
    if cluster.fabric is None or not cluster.fabric.interface:
        return _ENV
    name = cluster.fabric.interface
    return (
        f"  # env: {{NCCL_SOCKET_IFNAME: {name}, GLOO_SOCKET_IFNAME: {name}}}  # train over {cluster.fabric.network}\n"
    )
