"""The text of a first aboard.yaml: the nodes, and what people add next as comments that only need uncovering."""

from itertools import groupby
from typing import TYPE_CHECKING

from aboard.core.cluster.node_sets import fold_names, split_node_set

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aboard.config.node_entries import NodeEntry

_TOP = """\
# The nodes of this project. `aboard check` asks every one of them; `aboard init --schema` lists every key.
cluster:
  nodes:
"""

_REST = """
  # What every node has, unless its own entry says otherwise:
  # user: alice                              # else ssh's own configuration decides
  # python: /opt/venv/bin/python             # else the active environment
  # workdir: /home/alice/project             # where ranks start
  # fabric_address: "{name}i"                # the name that peers use for training traffic
  # env: {NCCL_DEBUG: INFO}
  # setup: [module load cuda, . /opt/venv/bin/activate]
"""
_SLOTS = "  # slots: 8                                 # accelerators to use on each node\n"
_RUN = """
# What the run will write; `aboard check` says beforehand whether there is room for it:
# run: {output: /data/out, writes: 200GB}
"""


def format_starter_file(entries: "Sequence[NodeEntry]") -> str:
    """A file that the loader accepts as it is, and with any of its comments uncovered."""
    lines = "".join(f'    - "{line}"\n' for line in _format_node_lines(entries))
    missing = any("slots" not in entry.given for entry in entries)
    return _TOP + lines + _REST + (_SLOTS if missing else "") + _RUN


def _format_node_lines(entries: "Sequence[NodeEntry]") -> "Iterator[str]":
    """One line for each run of nodes that are alike, in the order of the nodes."""
    for (user, slots), alike in groupby(entries, key=lambda entry: (entry.given.get("user"), entry.given.get("slots"))):
        for part in split_node_set(fold_names(entry.name for entry in alike)):
            yield (f"{user}@" if user else "") + part + (f" slots={slots}" if slots is not None else "")
