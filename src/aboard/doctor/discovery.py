"""Discovery: what `aboard init` asks nodes before there is a configuration."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_interface
from typing import Any

from aboard.core.cluster.contact import ReachedNode, UnreachedNode
from aboard.core.cluster.discovery import DiscoveredCluster, DiscoveredNode, FabricNetwork
from aboard.core.cluster.node import Node
from aboard.core.decoding import try_decode
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest, Script
from aboard.core.probes.probe import CommandOutput, Probe, ProbeAnswer, ProbeCommand, ProbeFiles
from aboard.diagnoses.untrusted import Untrusted, escape_text
from aboard.doctor.gpu.count_and_model_parity import count_gpus
from aboard.doctor.gpu.nvidia_smi import DRIVER, GPUS
from aboard.doctor.network.mesh_probe import ListenReply
from aboard.doctor.network.mesh_result import InterfaceAddress
from aboard.doctor.shared.answer_text import extract_file_text
from aboard.doctor.software.node_software import SOFTWARE
from aboard.node_scripts.storage_survey import NETWORK_TYPES

_MOST_MOUNTS = 8
_NONCE_SECONDS = 5.0
# Needs no quotes in YAML.
_INTERFACE = re.compile(r"(?=[^0-9]*[0-9])[A-Za-z_][A-Za-z0-9_-]*")


def parse_mounts(answer: ProbeAnswer) -> frozenset[tuple[Untrusted, Untrusted]]:
    """The mount point and type of each network file system."""
    found = set()
    for line in extract_file_text(answer).splitlines():
        fields = line.split(" ")
        if len(fields) > 2 and fields[2] in NETWORK_TYPES:  # noqa: PLR2004 - source, point, type
            found.add((Untrusted(fields[1]), Untrusted(fields[2])))
    return frozenset(found)


def ask_addresses(facts: Facts) -> Script[Mapping[str, tuple[InterfaceAddress, ...]]]:
    """Asks each node for the addresses of its interfaces."""
    request = ProbeRequest(op="listen", fields={"ports": []})
    replies = yield {node.name: request for node in facts.list_reached()}
    listening = {name: try_decode(ListenReply, reply) for name, reply in replies.items()}
    return {name: tuple(_list_addresses(reply)) for name, reply in listening.items()}


def _list_addresses(reply: ListenReply | None) -> Iterator[InterfaceAddress]:
    for interface, address, prefix in reply.addresses if reply else ():
        # A hostile node may name a prefix that no network has.
        with suppress(ValueError):
            yield InterfaceAddress(interface=interface, address=str(ip_interface(f"{address}/{prefix}")))


MOUNTS = Probe(name="mounts", question=ProbeFiles(globs=("/proc/self/mounts",)), parse=parse_mounts)
ADDRESSES = MultiNodeProbe(name="addresses", script=ask_addresses, early=True)


def build_nonce_probe(path: str, nonce: str) -> Probe[bool]:
    """Whether a node sees a file that the head has just written; then it shares that directory."""

    def parse(answer: ProbeAnswer) -> bool:
        return isinstance(answer, CommandOutput) and answer.code == 0 and answer.stdout.strip() == nonce

    return Probe(name="nonce", question=ProbeCommand(argv=("cat", path), timeout=_NONCE_SECONDS), parse=parse)


def build_subjects(nonce: Probe[bool]) -> tuple[Subject, ...]:
    """What to ask, under the names that `aboard check` uses; nothing is judged."""
    probes: dict[str, tuple[Probe[Any], ...]] = {
        "reach": (),
        "gpu": (GPUS, DRIVER),
        "software": (SOFTWARE,),
        "storage": (MOUNTS, nonce),
    }
    network = Subject(name="network", title="", probes=(), rules=(), multi_node_probes=(ADDRESSES,))
    return (*(Subject(name=name, title="", probes=asked, rules=()) for name, asked in probes.items()), network)


def summarize_facts(facts: Facts, nonce: Probe[bool], *, workdir: str) -> DiscoveredCluster:
    """The facts as safe texts, for the screen and for comments in aboard.yaml."""
    addresses = ADDRESSES.outcome(facts)
    return DiscoveredCluster(
        source=facts.cluster.source,
        workdir=workdir,
        nodes=tuple(_describe_node(facts, node, nonce) for node in facts.cluster),
        fabric=None if addresses is None or isinstance(addresses, Unknown) else find_fabric(addresses, facts),
        mounts=tuple(sorted(_list_common_mounts(facts)))[:_MOST_MOUNTS],
    )


def _describe_node(facts: Facts, node: Node, nonce: Probe[bool]) -> DiscoveredNode:
    contact = facts.contacts[node.name]
    if isinstance(contact, UnreachedNode):
        return DiscoveredNode(name=node.name, problem=contact)
    counted = node.name in count_gpus(facts)
    gpus = facts.of(GPUS).get(node.name)
    return DiscoveredNode(
        name=node.name,
        gpus=tuple(gpu.model.visible(80) for gpu in gpus.gpus) if counted and gpus else None,
        interpreter=_describe_interpreter(facts, node),
        lacking=escape_text(node.interpreter.lacking, 200) if node.interpreter else "",
        shares_workdir=facts.of(nonce).get(node.name, False),
    )


def _describe_interpreter(facts: Facts, node: Node) -> str:
    software = facts.of(SOFTWARE).get(node.name)
    path = escape_text(str(node.interpreter), 200) if node.interpreter else node.python
    if software is None:
        return path
    torch = software.packages.get("torch")
    return f"{path}, Python {software.python}, {f'torch {torch}' if torch else 'no torch'}"


def find_fabric(addresses: Mapping[str, tuple[InterfaceAddress, ...]], facts: Facts) -> FabricNetwork | None:
    """The network that every node has an address of its own in, and that ssh does not use.

    A container bridge has the same address on every node, so it is none.
    """
    logins = [contact.address for contact in facts.contacts.values() if isinstance(contact, ReachedNode)]
    members: dict[IPv4Network | IPv6Network, dict[str, InterfaceAddress]] = {}
    for name, own in addresses.items():
        for at in own:
            if at.usable:
                members.setdefault(ip_interface(at.address).network, {}).setdefault(name, at)
    for network, by_node in sorted(members.items(), key=lambda each: str(each[0])):
        hosts = {at.host for at in by_node.values()}
        if 1 < len(hosts) == len(addresses) and not any(login and ip_address(login) in network for login in logins):
            interfaces = {at.interface for at in by_node.values()}
            same = len(interfaces) == 1 and _INTERFACE.fullmatch(min(interfaces))
            return FabricNetwork(network=str(network), interface=min(interfaces) if same else "")
    return None


def _list_common_mounts(facts: Facts) -> set[str]:
    mounts = facts.of(MOUNTS)
    if not mounts:
        return set()
    common = frozenset.intersection(*mounts.values())
    return {f"{point.visible(200)} ({kind.visible(20)})" for point, kind in common}
