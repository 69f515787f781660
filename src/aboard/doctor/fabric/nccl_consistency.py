"""NCCL's settings, configuration and topology files: the same on all nodes, and matching their adapters."""

from collections.abc import Iterator, Mapping

from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.node_sets import quote_folded_names
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest, Script
from aboard.core.text.input_text import format_list
from aboard.diagnoses import Finding, Fix, join_fixes
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted, escape_text
from aboard.doctor.fabric import diagnoses as fabric
from aboard.doctor.fabric.nccl_settings import (
    NCCL_CONF,
    TOPOLOGY,
    collect_known_settings,
    collect_settings,
    compute_digest,
    list_absent_hcas,
)
from aboard.doctor.fabric.rdma_ports import PORTS
from aboard.doctor.shared.fix_values import quote_yaml
from aboard.doctor.shared.majority import find_majority
from aboard.lazy_dataclass import dataclass

# These may differ: they name a node's hardware or output files.
PER_NODE_SETTINGS = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_DEBUG", "NCCL_IGNORE", "NCCL_CONF")
TOPOLOGY_VARIABLE = "NCCL_TOPO_FILE"


@dataclass(frozen=True, kw_only=True)
class TopologyFile:
    """The file that NCCL_TOPO_FILE names on a node, and its digest; None when it is unreadable."""

    path: Untrusted
    digest: str | None


def read_topology_files(facts: Facts) -> Script[Mapping[str, TopologyFile]]:
    """Reads the file that each node's own setting names; only the answers of earlier probes give its path."""
    paths = {
        name: node_settings.get(TOPOLOGY_VARIABLE, NO_TEXT)
        for name, node_settings in collect_known_settings(facts).items()
    }
    # A star would be read as a pattern; real file names have none.
    paths = {name: path for name, path in paths.items() if path.startswith("/") and "*" not in path}
    if not paths:
        return {}
    replies = yield {
        name: ProbeRequest(op="read", fields={"globs": [path.raw()], "timeout": 5.0}) for name, path in paths.items()
    }
    found = {}
    for name, path in paths.items():
        reply = replies.get(name)
        files = None if reply is None or isinstance(reply, Unknown) else reply.get("files")
        if isinstance(files, dict):
            text = files.get(path.raw())
            found[name] = TopologyFile(path=path, digest=compute_digest(text) if isinstance(text, str) else None)
    return found


TOPOLOGIES = MultiNodeProbe(name="nccl-topology", script=read_topology_files)


def find_absent_hcas(facts: Facts) -> Iterator[Finding]:
    """NCCL uses the adapters of NCCL_IB_HCA that exist and silently ignores the rest."""
    nccl_settings = collect_settings(facts)
    for name, ports in facts.of(PORTS).items():
        spec = nccl_settings[name].get("NCCL_IB_HCA", NO_TEXT)
        gone = list_absent_hcas(ports, spec)
        # Excluding an adapter that doesn't exist is harmless.
        if gone and ports and not spec.startswith("^"):
            adapters = f"={','.join(port.name for port in ports if port.active)}"
            names = escape_text(format_list([each.visible() for each in gone]))
            yield fabric.HCA_ABSENT.finding(
                nodes=(name,),
                seen=f"NCCL_IB_HCA={spec.visible()} selects {names}, which the node doesn't have;"
                f" it has {format_list([port.name for port in ports])}",
                fix=fabric.HCA_ABSENT.fix(adapters=quote_yaml(adapters), node=name),
            )


def find_differing_settings(facts: Facts) -> Iterator[Finding]:
    """Ranks that choose another algorithm or network than their peers wait for each other forever."""
    every = collect_known_settings(facts)
    for key in sorted({key for own in every.values() for key in own if not key.startswith(PER_NODE_SETTINGS)}):
        values = {name: own.get(key) for name, own in every.items()}
        odd, seen = _find_odd_nodes(values, key)
        if odd:
            yield fabric.NCCL_SETTINGS.finding(
                nodes=odd,
                seen=seen,
                about=(key,),
                fix=join_fixes(
                    fabric.NCCL_SETTINGS.fix("look", key=key, where=quote_folded_names(odd)),
                    fabric.NCCL_SETTINGS.fix("set", key=key),
                ),
            )


def _find_odd_nodes(values: Mapping[str, Untrusted | None], key: str) -> tuple[tuple[str, ...], str]:
    """The nodes that differ from the majority, or all without one, and the sentence for them."""
    if len(set(values.values())) == 1:
        return (), ""
    most = find_majority(values)
    settled = sum(value == most for value in values.values()) * 2 > len(values)
    odd = tuple(name for name, value in values.items() if not settled or value != most)
    seen = format_list([f"{name} has {_format_setting(key, values[name])}" for name in odd])
    return odd, seen + (f"; the others have {_format_setting(key, most)}" if settled else "")


def _format_setting(key: str, value: Untrusted | None) -> str:
    return f"no {key}" if value is None else f"{key}={value.visible()}"


def find_topology_differences(facts: Facts) -> Iterator[Finding]:
    """Without its topology file NCCL guesses, and picks slow rings."""
    outcome = TOPOLOGIES.outcome(facts)
    topology_files = {} if outcome is None or isinstance(outcome, Unknown) else outcome
    for name, file in topology_files.items():
        if file.digest is None:
            node = facts.cluster.node(name)
            yield fabric.TOPOLOGY.finding(
                nodes=(name,),
                seen=f"{TOPOLOGY_VARIABLE} is {file.path.visible()}, which can't be read here",
                fix=_fix_missing_topology(topology_files, file.path, node),
            )
    yield from _compare_digests(
        {name: file.digest for name, file in topology_files.items() if file.digest}, "the topology file"
    )
    loaded = {name: conf.topology for name, conf in facts.of(NCCL_CONF).items()}
    yield from _compare_digests(loaded, TOPOLOGY)


def _fix_missing_topology(topology_files: Mapping[str, TopologyFile], path: Untrusted, node: Node) -> Fix:
    """How to copy the file from a node that has it, or how to look for it where none has."""
    giver = next((name for name, file in topology_files.items() if file.path == path and file.digest), None)
    if giver is None or node.transport is not TransportKind.SSH:
        return fabric.TOPOLOGY.fix("absent-bind" if node.container else "absent", path=path, node=node.target)
    source, goal = (Untrusted(f"{target}:{path.raw()}") for target in (giver, node.target))
    return fabric.TOPOLOGY.fix("copy-bind" if node.container else "copy", source=source, target=goal)


def _compare_digests(digests: Mapping[str, str | None], what: str) -> Iterator[Finding]:
    if len(set(digests.values())) <= 1:
        return
    most = find_majority(digests)
    settled = sum(value == most for value in digests.values()) * 2 > len(digests)
    for name, own in digests.items():
        if settled and own != most:
            seen = f"{what} {'is missing' if own is None else 'differs'}; most nodes have the same file"
            yield fabric.TOPOLOGY.finding(nodes=(name,), seen=seen, fix=fabric.TOPOLOGY.fix("other", node=name))
    if not settled:
        yield fabric.TOPOLOGY.finding(
            nodes=tuple(digests), seen=f"{what} differs between these nodes", fix=fabric.TOPOLOGY.fix("unequal")
        )
