"""Commands that several rules suggest: to check nodes again, and to let their peers through a firewall."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from aboard.core.cluster.node import Node
from aboard.core.cluster.node_sets import quote_folded_names
from aboard.core.evidence.node_snapshot import NicTraffic
from aboard.core.evidence.run_evidence import Evidence
from aboard.diagnoses import Finding, Fix, Shell, format_shell, join_lines

# The store and the ranks listen on these ports; lower ones belong to services.
_RULES = {
    "in": "sudo {program} -I INPUT -p tcp -s {network} --dport 1024:65535 -j ACCEPT"
    "    # on {nodes:shell}; lets its peers in until the next reboot",
    "out": "sudo {program} -I OUTPUT -p tcp -d {network} --dport 1024:65535 -j ACCEPT"
    "    # on {nodes:shell}; lets it out to its peers until the next reboot",
}
# A network larger than this is no cluster's: its nodes are listed one by one.
_WIDEST = {4: 16, 6: 48}
_SHOWN = 16
# The link states in which a NIC may well carry traffic.
LINK_UP = ("up", "unknown", "")
_RELAUNCH = re.compile(r"(?:(?<! ) +(?:# (?=then launch again))?|[;,] *)?(?:then |if not, )?launch again.*")
_READERS = "bundle|export|logs|report|why"
_Address = IPv4Address | IPv6Address


def build_check_command(evidence: Evidence, nodes: Iterable[str], only: str = "", why: str = "") -> Shell:
    """The `aboard check` command: nodes by name, or picked from aboard.yaml where they have settings.

    `why` is a sentence of our own that follows the command as a comment.
    """
    known = {part.node.name: part.node for part in evidence.plan.parts}
    names = list(dict.fromkeys(nodes))
    found = [known[name] for name in names if name in known]
    # A configured interpreter shows in `python` or `setup` too; one that a launch chose is in no file.
    # So is the working directory, which a launch sets on every node.
    plain = all(
        replace(node, interpreter=None, workdir=None) == Node(name=node.name, slots=node.slots) for node in found
    )
    every = set(names) == set(known) and not plain
    words = [
        "aboard check",
        "" if every else "{names:words}" if plain else "-i {picked}",
        "--only {only}" if only else "",
    ]
    text = " ".join(word for word in words if word) + (f"    # {why}" if why else "")
    return format_shell(text, names=names, picked="@".join(names), only=only)


def build_firewall_rules(
    evidence: Evidence, nodes: Sequence[str], target: str, ways: Sequence[str] = ("in", "out")
) -> Shell:
    """Firewall rules that open the nodes to all others of the run, by the network of `target`; none if unknown.

    An inserted rule comes before existing ones that drop or reject.
    """
    every = [part.node.name for part in evidence.plan.parts]
    others = every if len(nodes) > 1 else [name for name in every if name not in nodes]
    near = [own for name in others if (own := find_nearest_address(evidence, name, target)) is not None]
    if not near:
        return Shell()
    network = _find_common_network(each for _card, each in near)
    program = "ip6tables" if ":" in network else "iptables"
    return join_lines(
        *(format_shell(_RULES[way], program=program, network=network, nodes=quote_folded_names(nodes)) for way in ways)
    )


def find_nearest_address(evidence: Evidence, node: str, target: str) -> tuple[str, _Address] | None:
    """The node's own address that is nearest to another one, and its interface."""
    snapshot, there = evidence.snapshots.get(node), _parse_address(target)
    if snapshot is None or there is None:
        return None
    own = [(card, parsed) for card, text in snapshot.addresses if (parsed := _parse_address(text)) is not None]
    alike = [(card, each) for card, each in own if each.version == there.version and not each.is_loopback]
    return min(alike, key=lambda each: (int(each[1]) ^ int(there)).bit_length(), default=None)


def find_down_link(evidence: Evidence, node: str, target: str) -> NicTraffic | None:
    """The NIC that leads there, if it has no carrier or is down."""
    own = find_nearest_address(evidence, node, target)
    links = evidence.snapshots[node].links if own is not None else ()
    return next((link for link in links if own is not None and link.name == own[0] and link.state not in LINK_UP), None)


def resolve_host(evidence: Evidence, node: str, host: str) -> str:
    """The address of a hostname as any node resolves it, else the first known address of its node."""
    if _parse_address(host) is not None:
        return host
    found = (each.names.get(host) for each in evidence.snapshots.values())
    resolved = next((each[0] for each in found if isinstance(each, tuple) and each), "")
    known = (
        address for address, owner in evidence.owners.items() if owner == node and _parse_address(address) is not None
    )
    return resolved or next(known, "")


def _find_common_network(addresses: Iterable[_Address]) -> str:
    """The smallest network that contains them all."""
    found = sorted(set(addresses), key=int)
    if len(found) == 1:
        return str(found[0])
    whole = ip_network(found[0])
    while found[-1] not in whole:
        whole = whole.supernet()
    if whole.prefixlen < _WIDEST[whole.version]:
        return ",".join(map(str, found[:_SHOWN]))
    return str(whole)


def _parse_address(text: str) -> _Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def omit_relaunch(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings and their consequences without the advice to launch again, for a run that restarts by itself."""
    return _change_fixes(findings, _RELAUNCH, "")


def read_elsewhere(findings: Sequence[Finding], run: str, reader: str) -> tuple[Finding, ...]:
    """The findings with `reader` in place of `aboard`, in commands that read the record of this run."""
    commands = re.compile(rf"\baboard(?= (?:{_READERS}) (?:-[^#\n]{{,200}} )?{re.escape(run)}(?![^\s]))")
    return _change_fixes(findings, commands, reader.replace("\\", r"\\"))


def _change_fixes(findings: Sequence[Finding], pattern: re.Pattern[str], instead: str) -> tuple[Finding, ...]:
    return tuple(
        replace(
            each,
            fix=Fix(
                pattern.sub(instead, each.fix),
                variant=each.fix.variant,
                values=each.fix.values,
                is_advice=each.fix.is_advice,
            ),
            consequences=_change_fixes(each.consequences, pattern, instead),
        )
        for each in findings
    )
