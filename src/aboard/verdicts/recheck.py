"""The line that checks some nodes of a run again, as the run itself reaches them."""

from collections.abc import Iterable
from dataclasses import replace

from aboard.core.evidence import Evidence
from aboard.core.node import Node

SAME_CODE = "aboard check --only software    # is the code the same on all nodes?"


def recheck(evidence: Evidence, nodes: Iterable[str], only: str = "", why: str = "") -> str:
    """By name where names are all there is; nodes with settings have them in aboard.yaml, and are picked from there."""
    known = {part.node.name: part.node for part in evidence.plan.parts}
    names = list(dict.fromkeys(nodes))
    found = [known[name] for name in names if name in known]
    # An interpreter that was configured shows in `python` or `setup`, too; one that a launch chose stands in no file.
    plain = all(replace(node, interpreter=None) == Node(name=node.name, slots=node.slots) for node in found)
    which = "" if set(names) == set(known) and not plain else " ".join(names) if plain else f"-i {'@'.join(names)}"
    words = ["aboard check", which, f"--only {only}" if only else ""]
    return " ".join(word for word in words if word) + (f"    # {why}" if why else "")
