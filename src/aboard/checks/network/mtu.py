"""The size of packets: the same on all interfaces over which nodes reach each other."""

from collections.abc import Iterator

from aboard.checks.network.exercise import MESH
from aboard.checks.network.interfaces import INTERFACES
from aboard.checks.network.mesh import Mesh
from aboard.checks.usual import together, usual_or_best
from aboard.core.facts import Facts
from aboard.core.nodeset import fold, fold_quoted
from aboard.diagnoses import Finding, network

# Two names of one machine meet there, whatever the network is.
_LOOPBACK = "lo"


def mtu_differs(facts: Facts) -> Iterator[Finding]:
    """Two ends of TCP agree on the smaller size; RoCE, UDP and what lies between them need not."""
    outcome, known = facts.outcome(MESH), facts.of(INTERFACES)
    if not isinstance(outcome, Mesh):
        return
    sizes = {
        node: (card, known[node][card].mtu)
        for node, card in outcome.interfaces.items()
        if card in known.get(node, {}) and card != _LOOPBACK
    }
    usually = usual_or_best({node: mtu for node, (_card, mtu) in sizes.items()}, better=int)
    odd = {node: each for node, each in sizes.items() if each[1] != usually}
    for (card, mtu), nodes in together(odd).items():
        yield network.MTU_DIFFERS.finding(
            nodes=nodes,
            seen=f"{card} of {fold(nodes)} sends packets of up to {mtu} bytes, the others of up to {usually}",
            fix=network.MTU_DIFFERS.fix(interface=card, mtu=str(usually), where=fold_quoted(nodes)),
        )
