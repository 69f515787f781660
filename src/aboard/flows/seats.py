"""From what the check saw to what each node offers a run, and where rank 0 is to listen."""

from collections import Counter

from aboard.checks.gpu.smi import DRIVER
from aboard.checks.host.cores import CORES
from aboard.checks.network.exercise import MESH
from aboard.checks.network.mesh import Mesh, Port
from aboard.core.cluster import Cluster
from aboard.core.facts import Facts
from aboard.core.node import Node
from aboard.core.plan import Master
from aboard.core.planning import first_with_ranks
from aboard.core.request import Request
from aboard.core.seat import Seat

LOOPBACK = "127.0.0.1"


def seats(facts: Facts) -> dict[str, Seat]:
    """Of every node, also of those that nothing is known of: a launch without a check goes by what the user wrote."""
    mesh = facts.outcome(MESH)
    cores = facts.of(CORES)
    drivers = facts.of(DRIVER)
    found = {}
    for node in facts.cluster:
        known = mesh if isinstance(mesh, Mesh) else None
        found[node.name] = Seat(
            address=_address(node, known),
            interface=known.interfaces.get(node.name, "") if known else "",
            accelerators=drivers[node.name].cards or None if node.name in drivers else None,
            cores=cores.get(node.name),
        )
    return found


def master(cluster: Cluster, request: Request, facts: Facts) -> Master:
    """An address of rank 0's node at which every other was just seen to reach it; on one node, its own loopback."""
    first = first_with_ranks(cluster)
    mesh = facts.outcome(MESH)
    known = mesh if isinstance(mesh, Mesh) else None
    if request.master_address is not None:
        address = request.master_address
    elif len(cluster) == 1:
        address = LOOPBACK
    else:
        address = _address(first, known)
    return Master(node=first.name, address=address, port=request.master_port or _port(first, known))


def _address(node: Node, mesh: Mesh | None) -> str:
    """Where its peers' connections ended: an address means the same to all of them, a name may not."""
    wanted = node.fabric_address or node.target
    if mesh is None:
        return wanted
    ends = Counter(each.remote for (_, to, _), each in mesh.tries.items() if to == node.name and each.outcome == "ok")
    return ends.most_common(1)[0][0] if ends else mesh.targets.get(node.name, wanted)


def _port(node: Node, mesh: Mesh | None) -> int:
    """The usual one where all have just reached it, since a firewall may know it by number; else one that is free."""
    if mesh is None or node.name in mesh.taken:
        return 0
    tries = [each for (_, to, kind), each in mesh.tries.items() if to == node.name and kind is Port.RENDEZVOUS]
    return mesh.port if tries and all(each.outcome == "ok" for each in tries) else 0
