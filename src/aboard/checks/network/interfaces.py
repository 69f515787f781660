"""Interfaces: which one peers reach a node on, and whether the one that was asked for is there."""

import re
from collections import defaultdict
from collections.abc import Iterator

from aboard.checks.blanks import yaml_word
from aboard.checks.listed import listed
from aboard.checks.network.exercise import IFNAMES, MESH
from aboard.checks.network.mesh import Mesh
from aboard.checks.network.words import address
from aboard.core.facts import Facts
from aboard.core.node import Node
from aboard.core.probe import Answer, Contents, Files, Probe, Unparsed
from aboard.core.words import visible
from aboard.diagnoses import Finding, join_fixes, network
from aboard.lazy import dataclass

_STATE = "[a-z]{1,20}"
_DOWN = ("down", "lowerlayerdown", "notpresent")


@dataclass(frozen=True, kw_only=True)
class Interface:
    """What /sys/class/net says of one."""

    state: str
    mtu: int


def parse_interfaces(answer: Answer) -> dict[str, Interface]:
    """The interfaces by name."""
    if not isinstance(answer, Contents):
        raise Unparsed("not a list of files")
    read: dict[str, dict[str, str]] = defaultdict(dict)
    for path, text in answer.files.items():
        part = re.fullmatch(r"/sys/class/net/([\w.:@+-]{1,32})/(operstate|mtu)", path)
        if part:
            read[part[1]][part[2]] = text.strip()
    found = {}
    for name, given in read.items():
        if not re.fullmatch("[0-9]{1,9}", given.get("mtu", "")) or not re.fullmatch(_STATE, given.get("operstate", "")):
            raise Unparsed(f"{name} has no MTU or no state")
        found[name] = Interface(state=given["operstate"], mtu=int(given["mtu"]))
    if not found:
        raise Unparsed("no interface in /sys/class/net")
    return found


INTERFACES = Probe(
    name="interfaces",
    question=Files(globs=("/sys/class/net/*/operstate", "/sys/class/net/*/mtu")),
    parse=parse_interfaces,
)


def link_down(facts: Facts) -> Iterator[Finding]:
    """A cable that is out explains all that fails at its node."""
    outcome = facts.outcome(MESH)
    if not isinstance(outcome, Mesh):
        return
    known = facts.of(INTERFACES)
    failing = {name for pair, each in outcome.tries.items() if each.outcome != "ok" for name in pair[:2]}
    for node in (name for name in outcome.targets if name in failing and name in known):
        card = outcome.interface(node, address(outcome, node))
        if card in known[node] and known[node][card].state in _DOWN:
            yield network.LINK_DOWN.finding(
                nodes=(node,),
                seen=f"{card} of {node} ({address(outcome, node)}) has no link: it is {known[node][card].state}",
                fix=network.LINK_DOWN.fix(interface=card, node=node),
            )


def interface_missing(facts: Facts) -> Iterator[Finding]:
    """An interface that the env names and the node doesn't have ends NCCL or gloo at once."""
    known = facts.of(INTERFACES)
    outcome = facts.outcome(MESH)
    chosen_of = outcome.interfaces if isinstance(outcome, Mesh) else {}
    for node in facts.reached():
        for variable in IFNAMES:
            missing = _missing(node, variable, list(known[node.name])) if node.name in known else ""
            if missing:
                there = sorted(name for name in known[node.name] if name != "lo")
                use = chosen_of.get(node.name) or (there[0] if there else "INTERFACE")
                yield network.INTERFACE_MISSING.finding(
                    nodes=(node.name,),
                    seen=f"{variable}={node.env[variable]}, but {node.name} has no {missing}; it has {listed(there)}",
                    fix=network.INTERFACE_MISSING.fix(variable=variable, interface=yaml_word(use), node=node.name),
                )


def chosen(facts: Facts) -> Iterator[Finding]:
    """Where it isn't obvious, says which interface peers reach each node on."""
    outcome = facts.outcome(MESH)
    if not isinstance(outcome, Mesh) or len(outcome.targets) < 2:  # noqa: PLR2004 - a pair
        return
    picked = outcome.interfaces
    free = [node.name for node in facts.reached() if not all(name in node.env for name in IFNAMES)]
    several = [node for node in free if len(_usable(outcome, node)) > 1]
    if not picked or not free or (not several and len(set(picked.values())) == 1):
        return
    groups: dict[str, list[str]] = defaultdict(list)
    for node, name in picked.items():
        groups[name].append(node)
    lines = [
        network.INTERFACE.fix(variable=variable, interface=yaml_word(name), nodes=listed(nodes))
        for name, nodes in groups.items()
        for variable in IFNAMES
    ]
    said = "; ".join(f"{name} on {listed(nodes)}" for name, nodes in groups.items())
    yield network.INTERFACE.finding(
        nodes=tuple(several), seen=f"peers reach each other over {said}", fix=join_fixes(*lines)
    )


def _missing(node: Node, variable: str, there: list[str]) -> str:
    """What an IFNAME asks for and isn't there; NCCL takes prefixes and needs one of them, gloo names and all."""
    given = node.env.get(variable, "")
    words = [word for word in given.removeprefix("=").split(",") if word]
    if not words or given.startswith("^"):
        return ""
    if variable.startswith("GLOO"):
        return listed([visible(word) for word in words if word not in there])
    exact = given.startswith("=")
    if any(name == word or (not exact and name.startswith(word)) for word in words for name in there):
        return ""
    return listed([visible(word) for word in words])


def _usable(outcome: Mesh, node: str) -> set[str]:
    return {at.interface for at in outcome.addresses.get(node, ()) if at.usable}
