"""The size of packets: the same on all interfaces over which nodes reach each other."""

from collections.abc import Iterator

from aboard.checks.majority import find_most_common, group_by_value
from aboard.checks.network.interfaces import INTERFACES
from aboard.checks.network.mesh_probe import MESH
from aboard.checks.network.mesh_result import MeshResult
from aboard.core.cluster.node_sets import fold_names, quote_folded_names
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Finding
from aboard.diagnoses.nodes import network

# Two names of one machine meet there, whatever the network is.
_LOOPBACK = "lo"


def find_differing_mtu(facts: Facts) -> Iterator[Finding]:
    """TCP endpoints agree on the smaller MTU; RoCE, UDP and the switches between them may not."""
    outcome, known = MESH.outcome(facts), facts.of(INTERFACES)
    if not isinstance(outcome, MeshResult):
        return
    sizes = {
        node: (card, known[node][card].mtu)
        for node, card in outcome.interfaces.items()
        if card in known.get(node, {}) and card != _LOOPBACK
    }
    usually = find_most_common({node: mtu for node, (_card, mtu) in sizes.items()}, better=int)
    odd = {node: each for node, each in sizes.items() if each[1] != usually}
    for (card, mtu), nodes in group_by_value(odd).items():
        yield network.MTU_DIFFERS.finding(
            nodes=nodes,
            seen=f"{card} on {fold_names(nodes)} has an MTU of {mtu} bytes; the others have {usually}",
            fix=network.MTU_DIFFERS.fix(interface=card, mtu=str(usually), where=quote_folded_names(nodes)),
        )
