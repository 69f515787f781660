"""The line that checks some nodes of a run again, as the run itself reaches them, and how a set of nodes is written."""

from collections.abc import Iterable
from dataclasses import replace

from aboard.core.evidence import Evidence
from aboard.core.node import Node
from aboard.diagnoses import Shell, shell


def recheck(evidence: Evidence, nodes: Iterable[str], only: str = "", why: str = "") -> Shell:
    """By name where names are all there is; nodes with settings have them in aboard.yaml, and are picked from there.

    `why` is one of our own sentences, and stands behind the command.
    """
    known = {part.node.name: part.node for part in evidence.plan.parts}
    names = list(dict.fromkeys(nodes))
    found = [known[name] for name in names if name in known]
    # An interpreter that was configured shows in `python` or `setup`, too; one that a launch chose stands in no file.
    plain = all(replace(node, interpreter=None) == Node(name=node.name, slots=node.slots) for node in found)
    every = set(names) == set(known) and not plain
    words = [
        "aboard check",
        "" if every else "{names:words}" if plain else "-i {picked}",
        "--only {only}" if only else "",
    ]
    text = " ".join(word for word in words if word) + (f"    # {why}" if why else "")
    return shell(text, names=names, picked="@".join(names), only=only)
