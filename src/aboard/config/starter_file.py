"""The text of a new aboard.yaml: the nodes, and common settings as comments."""

from itertools import groupby
from typing import TYPE_CHECKING

from aboard.core.cluster.node_sets import fold_names, split_node_set

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aboard.config.node_entries import NodeEntry

_TOP = """\
# The nodes of this project. `aboard check` checks all of them; `aboard init --schema` lists every key.
cluster:
  nodes:
"""

_REST = """
  # Defaults for all nodes; a node's own entry overrides them:
  # user: alice                              # default: ssh's own configuration
  # python: /opt/venv/bin/python             # default: the active environment
  # workdir: /home/alice/project             # where ranks start
  # fabric_address: "{name}i"                # the node's name for training traffic
  # env: {NCCL_DEBUG: INFO}
  # setup: [module load cuda, . /opt/venv/bin/activate]
"""
_SLOTS = "  # slots: 8                                 # accelerators to use on each node\n"
_RUN = """
# What the run writes; `aboard check` verifies that there is enough space:
# run: {output: /data/out, writes: 200GB}
"""


def format_starter_file(entries: "Sequence[NodeEntry]") -> str:
    """A file that the loader accepts as it is, and with any of its comments uncommented."""
    lines = "".join(f'    - "{line}"\n' for line in _format_node_lines(entries))
    missing = any("slots" not in entry.settings for entry in entries)
    return _TOP + lines + _REST + (_SLOTS if missing else "") + _RUN


def _format_node_lines(entries: "Sequence[NodeEntry]") -> "Iterator[str]":
    """One line for each sequence of nodes that are alike, in order."""
    for (user, slots), alike in groupby(
        entries, key=lambda entry: (entry.settings.get("user"), entry.settings.get("slots"))
    ):
        for part in split_node_set(fold_names(entry.name for entry in alike)):
            yield (f"{user}@" if user else "") + part + (f" slots={slots}" if slots is not None else "")
