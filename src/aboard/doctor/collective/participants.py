"""Which nodes take part in the collective test, with how many ranks, and which are left out and why."""

from collections.abc import Mapping
from dataclasses import field

from aboard.core.cluster.node import Node
from aboard.core.decoding import PortNumber, Word
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeParseError
from aboard.core.text.input_text import format_count
from aboard.doctor.network.link_rates import group_bad_pairs
from aboard.doctor.network.mesh_probe import get_mesh
from aboard.doctor.shared.majority import group_by_value
from aboard.doctor.shared.script_probes import build_rank_command, decode_script_output, parse_script_output
from aboard.lazy_dataclass import dataclass
from aboard.node_scripts.script_source import read_script

# Importing torch takes two seconds of a core, so a machine that is many nodes (a sandbox) would take minutes.
MOST_PER_CORE = 8


@dataclass(frozen=True, kw_only=True)
class NodeCapabilities:
    """What the test needs to know of a node; `machine` is equal on nodes that are the same machine."""

    torch: bool = False
    cuda: bool = False
    gpus: int
    cores: int
    machine: Word
    port: PortNumber
    token: Word


def parse_capabilities(answer: ProbeAnswer) -> NodeCapabilities:
    capabilities = decode_script_output(NodeCapabilities, parse_script_output(answer))
    if not capabilities.port:
        raise ProbeParseError("no free port was found")
    return capabilities


TORCH = Probe(
    name="torch",
    question=lambda node: build_rank_command(node, "-c", read_script("rank_capabilities")),
    parse=parse_capabilities,
    quick=False,
)


@dataclass(frozen=True, kw_only=True)
class Participants:
    """Ranks by node, in order. `why` is the reason when no node takes part, `left_out` that of each other node."""

    ranks: Mapping[str, int] = field(default_factory=dict)
    nccl: bool = False
    why: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)


def select_participants(facts: Facts, *, every: bool) -> Participants:
    """All nodes take part, except those with a known fault and those too many for their machine."""
    capabilities = facts.of(TORCH)
    known_nodes = [node for node in facts.list_reached() if node.name in capabilities]
    lacking = [node.name for node in known_nodes if not capabilities[node.name].torch]
    left_out = {node.name: "not reached" for node in facts.cluster if node not in facts.list_reached()}
    left_out.update({name: unknown.why for name, unknown in facts.unknown(TORCH).items()})
    if lacking:
        return Participants(why="torch is not installed", left_out=dict.fromkeys(lacking, "torch is not installed"))
    left_out.update(_list_cut_off_nodes(facts))
    members = [node for node in known_nodes if node.name not in left_out]
    if not every:
        left_out.update(_list_surplus_nodes(members, capabilities))
        members = [node for node in members if node.name not in left_out]
    if not members:
        return Participants(why="no node can take part", left_out=left_out)
    nccl = all(capabilities[node.name].gpus and capabilities[node.name].cuda for node in members)
    ranks = {node.name: _count_ranks(node, capabilities[node.name]) if nccl else 1 for node in members}
    return Participants(ranks=ranks, nccl=nccl, left_out=left_out)


def _list_cut_off_nodes(facts: Facts) -> dict[str, str]:
    """Nodes that the network test has just found cut off: waiting for them again shows nothing new."""
    mesh = get_mesh(facts)
    bad = {(frm, to) for (frm, to, _), each in mesh.tries.items() if each.outcome != "ok"}
    names = dict.fromkeys(name for nodes, _pairs in group_bad_pairs(bad) for name in nodes)
    return {
        **dict.fromkeys(names, "its connections failed"),
        **dict.fromkeys(mesh.missing, "its connections could not be tested"),
    }


def _list_surplus_nodes(nodes: list[Node], capabilities: Mapping[str, NodeCapabilities]) -> dict[str, str]:
    """Of many nodes on one machine only some take part, always including the first, where rank 0 runs."""
    machines = group_by_value({node.name: capabilities[node.name].machine or node.name for node in nodes})
    surplus: dict[str, str] = {}
    for names in machines.values():
        cores = max(1, min(capabilities[name].cores for name in names))
        most = MOST_PER_CORE * cores
        if len(names) > most:
            chosen = {names[at * len(names) // most] for at in range(most)}
            why = f"{len(names)} nodes are one machine with {format_count(cores, 'core')}"
            surplus.update({name: why for name in names if name not in chosen})
    return surplus


def _count_ranks(node: Node, capabilities: NodeCapabilities) -> int:
    """One for each GPU that a run would use."""
    slots = len(node.picked) if node.picked is not None else node.slots
    return max(1, min(capabilities.gpus, slots or capabilities.gpus))
