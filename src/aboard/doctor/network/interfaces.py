"""Interfaces: which one peers reach a node on, whether the requested one exists, and whether their MTUs agree."""

import re
from collections import defaultdict
from collections.abc import Iterator

from aboard.core.cluster.node import Node
from aboard.core.cluster.node_sets import fold_names, quote_folded_names
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeFiles, ProbeParseError
from aboard.core.text.input_text import format_list
from aboard.diagnoses import Finding, join_fixes
from aboard.diagnoses.untrusted import escape_text
from aboard.doctor.network import diagnoses as network
from aboard.doctor.network.connection_text import find_node_address
from aboard.doctor.network.mesh_probe import IFNAMES, get_mesh
from aboard.doctor.network.mesh_result import MeshResult
from aboard.doctor.shared.answer_text import extract_files
from aboard.doctor.shared.fix_values import format_yaml_value
from aboard.doctor.shared.majority import find_most_common, group_by_value
from aboard.lazy_dataclass import dataclass

_STATE = "[a-z]{1,20}"
_DOWN = ("down", "lowerlayerdown", "notpresent")
# Two names of one machine meet there, whatever the network is.
_LOOPBACK = "lo"


@dataclass(frozen=True, kw_only=True)
class NetworkInterface:
    """One interface in /sys/class/net."""

    state: str
    mtu: int


def parse_interfaces(answer: ProbeAnswer) -> dict[str, NetworkInterface]:
    """The interfaces by name."""
    fields_by_interface: dict[str, dict[str, str]] = defaultdict(dict)
    for path, text in extract_files(answer).items():
        part = re.fullmatch(r"/sys/class/net/([\w.:@+-]{1,32})/(operstate|mtu)", path)
        if part:
            fields_by_interface[part[1]][part[2]] = text.strip()
    found = {}
    for name, fields in fields_by_interface.items():
        if not re.fullmatch("[0-9]{1,9}", fields.get("mtu", "")) or not re.fullmatch(
            _STATE, fields.get("operstate", "")
        ):
            raise ProbeParseError(f"{name} has no MTU or no state")
        found[name] = NetworkInterface(state=fields["operstate"], mtu=int(fields["mtu"]))
    if not found:
        raise ProbeParseError("no interface in /sys/class/net")
    return found


INTERFACES = Probe(
    name="interfaces",
    question=ProbeFiles(globs=("/sys/class/net/*/operstate", "/sys/class/net/*/mtu")),
    parse=parse_interfaces,
)


def find_down_links(facts: Facts) -> Iterator[Finding]:
    """A link that is down explains all failures at its node."""
    outcome, known = get_mesh(facts), facts.of(INTERFACES)
    failing = {name for pair, each in outcome.tries.items() if each.outcome != "ok" for name in pair[:2]}
    for node in (name for name in outcome.targets if name in failing and name in known):
        interface = outcome.interface(node, find_node_address(outcome, node))
        if interface in known[node] and known[node][interface].state in _DOWN:
            yield network.LINK_DOWN.finding(
                nodes=(node,),
                seen=f"{interface} on {node} ({find_node_address(outcome, node)}) has no link: it is"
                f" {known[node][interface].state}",
                fix=network.LINK_DOWN.fix(interface=interface, node=node),
            )


def find_missing_interfaces(facts: Facts) -> Iterator[Finding]:
    """NCCL and gloo fail at once when the env names an interface that the node lacks."""
    known = facts.of(INTERFACES)
    chosen_of = get_mesh(facts).interfaces
    for node in facts.list_reached():
        for variable in IFNAMES:
            missing = _find_missing_names(node, variable, list(known[node.name])) if node.name in known else ""
            if missing:
                there = sorted(name for name in known[node.name] if name != "lo")
                use = chosen_of.get(node.name) or (there[0] if there else "INTERFACE")
                yield network.INTERFACE_MISSING.finding(
                    nodes=(node.name,),
                    seen=f"{variable}={node.env[variable]}, but {node.name} has no {missing}; it has"
                    f" {format_list(there) or 'only lo'}",
                    fix=network.INTERFACE_MISSING.fix(
                        variable=variable, interface=format_yaml_value(use), node=node.name
                    ),
                )


def find_differing_mtu(facts: Facts) -> Iterator[Finding]:
    """TCP endpoints agree on the smaller MTU; RoCE, UDP and the switches between them may not."""
    outcome, known = get_mesh(facts), facts.of(INTERFACES)
    sizes = {
        node: (interface, known[node][interface].mtu)
        for node, interface in outcome.interfaces.items()
        if interface in known.get(node, {}) and interface != _LOOPBACK
    }
    usually = find_most_common({node: mtu for node, (_card, mtu) in sizes.items()}, better=int)
    odd = {node: each for node, each in sizes.items() if each[1] != usually}
    for (interface, mtu), nodes in group_by_value(odd).items():
        yield network.MTU_DIFFERS.finding(
            nodes=nodes,
            seen=f"{interface} on {fold_names(nodes)} has an MTU of {mtu} bytes; the other nodes have {usually}",
            fix=network.MTU_DIFFERS.fix(interface=interface, mtu=str(usually), where=quote_folded_names(nodes)),
        )


def report_used_interfaces(facts: Facts) -> Iterator[Finding]:
    """Reports which interface peers use for each node, where it isn't obvious."""
    outcome = get_mesh(facts)
    if len(outcome.targets) < 2:  # noqa: PLR2004 - a pair
        return
    interfaces = outcome.interfaces
    free = [node.name for node in facts.list_reached() if not all(name in node.env for name in IFNAMES)]
    several = [node for node in free if len(_list_usable_interfaces(outcome, node)) > 1]
    if not interfaces or not free or (not several and len(set(interfaces.values())) == 1):
        return
    groups = group_by_value(interfaces)
    lines = [
        network.INTERFACE.fix(variable=variable, interface=format_yaml_value(name), nodes=format_list(nodes))
        for name, nodes in groups.items()
        for variable in IFNAMES
    ]
    description = "; ".join(f"{name} on {format_list(nodes)}" for name, nodes in groups.items())
    yield network.INTERFACE.finding(
        nodes=tuple(several), seen=f"peers reach each other over {description}", fix=join_fixes(*lines)
    )


def _find_missing_names(node: Node, variable: str, there: list[str]) -> str:
    """The missing interfaces of a request; NCCL takes prefixes and needs one match, gloo takes names and needs all."""
    setting = node.env.get(variable, "")
    words = [word for word in setting.removeprefix("=").split(",") if word]
    if not words or setting.startswith("^"):
        return ""
    if variable.startswith("GLOO"):
        return format_list([escape_text(word) for word in words if word not in there])
    exact = setting.startswith("=")
    if any(name == word or (not exact and name.startswith(word)) for word in words for name in there):
        return ""
    return format_list([escape_text(word) for word in words])


def _list_usable_interfaces(result: MeshResult, node: str) -> set[str]:
    return {at.interface for at in result.addresses.get(node, ()) if at.usable}
