"""Name resolution: what each node resolves the others' names to."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from typing import TypeGuard

from aboard.core.cluster.node_sets import quote_folded_names
from aboard.core.probes.facts import Facts
from aboard.core.text.input_text import format_list
from aboard.diagnoses import Finding, Severity, join_fixes
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.network import diagnoses as network
from aboard.doctor.network.connection_text import find_node_address
from aboard.doctor.network.mesh_probe import get_mesh
from aboard.doctor.network.mesh_result import MeshResult, ResolvedAddresses
from aboard.doctor.shared.majority import group_by_value


def find_unresolved_names(facts: Facts) -> Iterator[Finding]:
    """A node that can't resolve a peer's name; a name that no node knows is an alias in the head's ssh_config."""
    outcome = get_mesh(facts)
    lost = _list_unresolved_targets(outcome)
    for names, nodes in _group_by_names(lost).items():
        everywhere = all(_is_unknown_everywhere(outcome, name) for name in names)
        works = all(
            each.outcome != "unresolved"
            for (frm, to, _), each in outcome.tries.items()
            if frm in nodes and outcome.targets[to] in names
        )
        whose = [node for node, target in outcome.targets.items() if target in names]
        lines = [
            network.UNRESOLVED.fix(
                entry=f"{find_node_address(outcome, node)} {outcome.targets[node]}", where=quote_folded_names(nodes)
            )
            for node in whose
        ]
        severity = Severity.INFO if everywhere else Severity.WARN
        yield network.UNRESOLVED.finding(
            severity=severity if works else Severity.BLOCK,
            nodes=nodes,
            seen=f"{format_list(nodes)} cannot resolve {format_list(names)}: {lost[nodes[0]][names[0]].visible()}"
            + (" (the address works)" if works else ""),
            why="Connections to that name fail, and torch only reports that the client socket has timed out."
            if not everywhere
            else "Only this machine knows the name, from its ssh_config; programs on the nodes must use addresses.",
            fix=join_fixes(*lines),
        )


def find_loopback_peers(facts: Facts) -> Iterator[Finding]:
    """A node that resolves a peer's name to loopback would connect to itself."""
    outcome = get_mesh(facts)
    owners = _map_target_owners(outcome)
    for node, resolutions in outcome.resolved.items():
        wrong = {
            peer: found
            for target, found in resolutions.items()
            if target != outcome.targets.get(node) and _is_loopback(found)
            for peer in owners.get(target, ())
        }
        if wrong:
            lines = [
                network.PEER_ON_LOOPBACK.fix(
                    script=_build_sed_script(outcome.targets[peer]),
                    entry=f"{find_node_address(outcome, peer)} {outcome.targets[peer]}",
                    where=quote_folded_names([node]),
                )
                for peer in wrong
            ]
            yield network.PEER_ON_LOOPBACK.finding(
                nodes=(node, *wrong),
                seen=f"{node} resolves {format_list(list(wrong))} to itself:"
                f" {outcome.targets[next(iter(wrong))]} is {format_list(next(iter(wrong.values())))} there",
                fix=join_fixes(*lines),
            )


def find_differing_names(facts: Facts) -> Iterator[Finding]:
    """A name that resolves to different machines on different nodes."""
    outcome = get_mesh(facts)
    owners = _map_target_owners(outcome)
    seen: dict[str, dict[tuple[str, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    for other, resolutions in outcome.resolved.items():
        for target, found in resolutions.items():
            if isinstance(found, tuple) and found and not _is_loopback(found) and owners.get(target) != (other,):
                seen[target][found].append(other)
    for target in owners:
        views = seen[target]
        if len(views) > 1 and not set.intersection(*map(set, views)):
            ranked = sorted(views.items(), key=lambda view: -len(view[1]))
            description = "; ".join(f"{format_list(list(found))} on {format_list(nodes)}" for found, nodes in ranked)
            odd = [name for _, names in ranked[1:] for name in names]
            yield network.NAMES_DIFFER.finding(
                nodes=tuple(odd),
                seen=f"{target} resolves to {description}",
                fix=network.NAMES_DIFFER.fix(
                    name=target,
                    script=_build_sed_script(target),
                    entry=f"{ranked[0][0][0]} {target}",
                    where=quote_folded_names(odd),
                ),
            )


def _build_sed_script(name: str) -> str:
    """The sed script that removes a name from /etc/hosts."""
    return "s/[[:space:]]" + name.replace(".", r"\.") + "([[:space:]]|$)/ /"


def _map_target_owners(result: MeshResult) -> dict[str, tuple[str, ...]]:
    """The nodes of each target, so that rules walk a node's few resolutions instead of thousands of targets."""
    return group_by_value(result.targets)


def _list_unresolved_targets(result: MeshResult) -> dict[str, dict[str, Untrusted]]:
    """The targets that don't resolve, by node, and why."""
    place = {target: at for at, target in enumerate(_map_target_owners(result))}
    found = {
        node: {
            each: led
            for each in sorted(place.keys() & resolutions.keys(), key=place.__getitem__)
            if isinstance(led := resolutions[each], Untrusted)
        }
        for node, resolutions in result.resolved.items()
    }
    return {node: names for node, names in found.items() if names}


def _group_by_names(lost: Mapping[str, Iterable[str]]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Groups names that fail on the same nodes into one finding."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for node, names in lost.items():
        for name in names:
            by_name[name].append(node)
    grouped: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, nodes in by_name.items():
        grouped[tuple(nodes)].append(name)
    return {tuple(names): nodes for nodes, names in grouped.items()}


def _is_unknown_everywhere(result: MeshResult, name: str) -> bool:
    """Whether no node resolves a name; a single node's answer counts only if it resolves no peer at all."""
    answers = [resolutions for resolutions in result.resolved.values() if name in resolutions]
    unknown = all(isinstance(resolutions[name], Untrusted) for resolutions in answers)
    targets = set(result.targets.values())
    return unknown and (
        len(answers) > 1
        or all(
            isinstance(resolutions[each], Untrusted)
            for resolutions in result.resolved.values()
            for each in targets & set(resolutions)
        )
    )


def _is_loopback(addresses: ResolvedAddresses) -> TypeGuard[tuple[str, ...]]:
    """Whether a name resolves to loopback addresses only."""
    return isinstance(addresses, tuple) and bool(addresses) and all(ip_address(each).is_loopback for each in addresses)
