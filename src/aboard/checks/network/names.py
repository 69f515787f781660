"""Names: what each node makes of the others' names."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from typing import TypeGuard

from aboard.checks.listed import listed
from aboard.checks.network.exercise import MESH
from aboard.checks.network.mesh import Mesh, Resolved
from aboard.checks.network.words import address
from aboard.core.facts import Facts
from aboard.core.nodeset import fold_quoted
from aboard.diagnoses import Finding, Severity, join_fixes, network
from aboard.diagnoses.untrusted import Untrusted


def unresolved(facts: Facts) -> Iterator[Finding]:
    """A node for whom a peer's name leads nowhere; a name that nobody knows is an alias of the head's ssh."""
    outcome = facts.outcome(MESH)
    if not isinstance(outcome, Mesh):
        return
    lost = _lost(outcome)
    for names, nodes in _grouped(lost).items():
        everywhere = all(_nobody_knows(outcome, name) for name in names)
        works = all(
            each.outcome != "unresolved"
            for (frm, to, _), each in outcome.tries.items()
            if frm in nodes and outcome.targets[to] in names
        )
        whose = [node for node, target in outcome.targets.items() if target in names]
        lines = [
            network.UNRESOLVED.fix(entry=f"{address(outcome, node)} {outcome.targets[node]}", where=fold_quoted(nodes))
            for node in whose
        ]
        severity = Severity.INFO if everywhere else Severity.WARN
        yield network.UNRESOLVED.finding(
            severity=severity if works else Severity.BLOCK,
            nodes=nodes,
            seen=f"{listed(nodes)} cannot resolve {listed(names)}: {lost[nodes[0]][names[0]].visible()}"
            + (" (the address works)" if works else ""),
            why="Whatever connects by that name fails, and torch only says that the client socket has timed out."
            if not everywhere
            else "Only this machine knows the name, from its ssh_config; what runs on the nodes must use addresses.",
            fix=join_fixes(*lines),
        )


def peer_on_loopback(facts: Facts) -> Iterator[Finding]:
    """A node that takes a peer's name for itself would connect to itself."""
    outcome = facts.outcome(MESH)
    if not isinstance(outcome, Mesh):
        return
    owners = _owners(outcome)
    for node, given in outcome.resolved.items():
        wrong = {
            peer: found
            for target, found in given.items()
            if target != outcome.targets.get(node) and _loopback(found)
            for peer in owners.get(target, ())
        }
        if wrong:
            lines = [
                network.PEER_ON_LOOPBACK.fix(
                    script=_forget(outcome.targets[peer]),
                    entry=f"{address(outcome, peer)} {outcome.targets[peer]}",
                    where=fold_quoted([node]),
                )
                for peer in wrong
            ]
            yield network.PEER_ON_LOOPBACK.finding(
                nodes=(node, *wrong),
                seen=f"{node} takes {listed(list(wrong))} for itself:"
                f" {outcome.targets[next(iter(wrong))]} is {listed(next(iter(wrong.values())))} there",
                fix=join_fixes(*lines),
            )


def names_differ(facts: Facts) -> Iterator[Finding]:
    """A name that is one machine here and another there."""
    outcome = facts.outcome(MESH)
    if not isinstance(outcome, Mesh):
        return
    owners = _owners(outcome)
    seen: dict[str, dict[tuple[str, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for other, given in outcome.resolved.items():
        for target, found in given.items():
            if isinstance(found, tuple) and found and not _loopback(found) and owners.get(target, []) != [other]:
                seen[target][found].append(other)
    for target in owners:
        views = seen[target]
        if len(views) > 1 and not set.intersection(*map(set, views)):
            ranked = sorted(views.items(), key=lambda view: -len(view[1]))
            said = "; ".join(f"{listed(list(found))} on {listed(nodes)}" for found, nodes in ranked)
            odd = [name for _, names in ranked[1:] for name in names]
            yield network.NAMES_DIFFER.finding(
                nodes=tuple(odd),
                seen=f"{target} is {said}",
                fix=network.NAMES_DIFFER.fix(
                    name=target, script=_forget(target), entry=f"{ranked[0][0][0]} {target}", where=fold_quoted(odd)
                ),
            )


def _forget(name: str) -> str:
    """For sed: takes a name from whatever /etc/hosts gives it to."""
    return "s/[[:space:]]" + name.replace(".", r"\.") + "([[:space:]]|$)/ /"


def _owners(outcome: Mesh) -> dict[str, list[str]]:
    """Whose each target is. A node asks for a few of thousands: what it was told is walked, never all of them."""
    owners: dict[str, list[str]] = {}
    for node, target in outcome.targets.items():
        owners.setdefault(target, []).append(node)
    return owners


def _lost(outcome: Mesh) -> dict[str, dict[str, Untrusted]]:
    """The targets that lead nowhere, by node, and why."""
    place = {target: at for at, target in enumerate(_owners(outcome))}
    found = {
        node: {
            each: led
            for each in sorted(place.keys() & given.keys(), key=place.__getitem__)
            if isinstance(led := given[each], Untrusted)
        }
        for node, given in outcome.resolved.items()
    }
    return {node: names for node, names in found.items() if names}


def _grouped(lost: Mapping[str, Iterable[str]]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Nodes that miss the same names in one finding, or one name that several nodes miss."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for node, names in lost.items():
        for name in names:
            by_name[name].append(node)
    grouped: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, nodes in by_name.items():
        grouped[tuple(nodes)].append(name)
    return {tuple(names): nodes for nodes, names in grouped.items()}


def _nobody_knows(outcome: Mesh, name: str) -> bool:
    """Whether a name means nothing to all nodes; one node's word is enough only if it knows no peer at all."""
    asked = [given for given in outcome.resolved.values() if name in given]
    unknown = all(isinstance(given[name], Untrusted) for given in asked)
    targets = set(outcome.targets.values())
    return unknown and (
        len(asked) > 1
        or all(
            isinstance(given[each], Untrusted) for given in outcome.resolved.values() for each in targets & set(given)
        )
    )


def _loopback(given: Resolved) -> TypeGuard[tuple[str, ...]]:
    """Whether all that a name leads to is the machine itself."""
    return isinstance(given, tuple) and bool(given) and all(ip_address(each).is_loopback for each in given)
