"""Derives from the check's facts what each node offers a run, and where rank 0 listens."""

import re
from collections import Counter

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.node_resources import NodeResources
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.plan import MasterAddress
from aboard.core.plan.plan_builder import find_rank_zero_node
from aboard.core.probes.facts import Facts
from aboard.core.slurm.job_nodes import NO_GPUS_OPTION
from aboard.diagnoses import InputError
from aboard.diagnoses.untrusted import Untrusted
from aboard.diagnoses.usage import pasted_commands
from aboard.doctor.gpu.nvidia_smi import DRIVER, GpuDriver
from aboard.doctor.gpu.visible_devices import VISIBLE
from aboard.doctor.host.cpu_cores import CORES, MEMORY_NODES, ONLINE_CORES, MemoryNodes
from aboard.doctor.network.mesh_probe import MESH
from aboard.doctor.network.mesh_result import MeshResult, PortKind

LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")
# An index, a GPU's UUID, or a part of a GPU.
_GPU_NAME = re.compile(r"[0-9]{1,4}|(GPU|MIG)-[\w/-]{1,100}")


def collect_node_resources(facts: Facts) -> dict[str, NodeResources]:
    """The resources of every node; without facts, as in a launch without a check, from the user's configuration."""
    mesh = MESH.outcome(facts)
    cores = facts.of(CORES)
    drivers = facts.of(DRIVER)
    visible, online, places = facts.of(VISIBLE), facts.of(ONLINE_CORES), facts.of(MEMORY_NODES)
    resources = {}
    for node in facts.cluster:
        # Fewer cores than the machine has are somebody's own binding, such as Slurm's.
        is_whole = cores.get(node.name) == online.get(node.name) and node.transport is not TransportKind.SLURM
        place = places.get(node.name, MemoryNodes()) if is_whole else MemoryNodes()
        known_mesh = mesh if isinstance(mesh, MeshResult) else None
        resources[node.name] = NodeResources(
            address=_find_address(node, known_mesh),
            interface=known_mesh.interfaces.get(node.name, "") if known_mesh else "",
            accelerators=_count_accelerators(node, drivers.get(node.name)),
            cores=cores.get(node.name),
            memory_nodes=place.nodes,
            gpu_cores=place.gpus,
            visible_gpus=_list_visible_gpus(node, visible.get(node.name)),
        )
    return resources


def choose_master(cluster: Cluster, request: LaunchRequest, facts: Facts) -> MasterAddress:
    """The address of rank 0's node that the other nodes just reached it at; loopback for a single node."""
    first = find_rank_zero_node(cluster)
    mesh = MESH.outcome(facts)
    known_mesh = mesh if isinstance(mesh, MeshResult) else None
    if request.master_address is not None:
        address = request.master_address
        _require_node_address(cluster, address, first, known_mesh)
    elif len(cluster) == 1:
        address = LOOPBACK
    else:
        address = _find_address(first, known_mesh)
    return MasterAddress(node=first.name, address=address, port=request.master_port or _choose_port(first, known_mesh))


def _require_node_address(cluster: Cluster, address: str, first: Node, mesh: MeshResult | None) -> None:
    """Refuses an address that no node has, such as that of an example: ranks would wait for it until their timeout."""
    if mesh is None or not _ADDRESS.fullmatch(address) or not all(mesh.addresses.get(node.name) for node in cluster):
        return
    known = {each.host for listed in mesh.addresses.values() for each in listed} | set(mesh.targets.values())
    if address not in known | {each.remote.removeprefix("::ffff:") for each in mesh.tries.values()}:
        seen = f"no node has the master address {address}; rank 0's node {first.name} has {_find_address(first, mesh)}"
        raise InputError.of(pasted_commands.MASTER, "--master-address", seen, "nobody", node=first.name)


def _count_accelerators(node: Node, driver: GpuDriver | None) -> int | None:
    """The node's own GPUs, unless Slurm counts GPUs and gave the job none of them."""
    return None if driver is None or NO_GPUS_OPTION in node.step_options else driver.cards or None


def _list_visible_gpus(node: Node, value: Untrusted | None) -> tuple[str, ...]:
    """The GPUs that Slurm gave the agent's step; elsewhere, slots are the node's own numbers."""
    if node.transport is not TransportKind.SLURM or value is None:
        return ()
    names = value.raw().split(",")
    return tuple(names) if all(_GPU_NAME.fullmatch(name) for name in names) else ()


def _find_address(node: Node, mesh: MeshResult | None) -> str:
    """The address that its peers connected to: unlike a name, it means the same on all of them."""
    wanted = node.fabric_address or node.target
    if mesh is None:
        return wanted
    ends = Counter(each.remote for (_, to, _), each in mesh.tries.items() if to == node.name and each.outcome == "ok")
    return ends.most_common(1)[0][0] if ends else mesh.targets.get(node.name, wanted)


def _choose_port(node: Node, mesh: MeshResult | None) -> int:
    """The usual port if all nodes just reached it, since a firewall may allow only that one; else 0, any free port."""
    if mesh is None or node.name in mesh.taken:
        return 0
    tries = [each for (_, to, kind), each in mesh.tries.items() if to == node.name and kind is PortKind.RENDEZVOUS]
    return mesh.port if tries and all(each.outcome == "ok" for each in tries) else 0
