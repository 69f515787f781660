"""What the nodes offer a run, from the facts of its check."""

from typing import Any

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import FileContents
from aboard.diagnoses import InputError
from aboard.doctor.host.cpu_cores import CORES, MEMORY_NODES, ONLINE_CORES, MemoryNodes, parse_memory_nodes
from aboard.doctor.network.mesh_probe import MESH
from aboard.doctor.network.mesh_result import InterfaceAddress, MeshResult
from aboard.engine.node_resources import choose_master, collect_node_resources

CLUSTER = Cluster(nodes=(Node(name="n1"), Node(name="n2")))
ADDRESSES = {name: (InterfaceAddress(interface="eth0", address=f"10.0.0.{name[1]}/24"),) for name in ("n1", "n2")}


def choose(address: str, **known: object) -> str:
    mesh = MeshResult(targets={"n1": "10.0.0.1", "n2": "10.0.0.2"}, **known)  # type: ignore[arg-type]
    program = Program(kind=ProgramKind.SCRIPT, target="train.py")
    facts = Facts(cluster=CLUSTER, contacts={}, outcomes={MESH.name: mesh})
    return choose_master(CLUSTER, LaunchRequest(program=program, master_address=address), facts).address


def test_a_master_address_that_no_node_has_is_refused() -> None:
    """Ranks would wait for the address of an example; a name, an address that peers use, and unknown ones stay."""
    with pytest.raises(InputError) as refused:
        choose("192.168.0.1", addresses=ADDRESSES)
    (problem,) = refused.value.problems
    assert problem.seen == "no node has the master address 192.168.0.1; rank 0's node n1 has 10.0.0.1"
    assert problem.fix == "remove it: Aboard chooses the address at which the other nodes reach n1"
    assert choose("10.0.0.1", addresses=ADDRESSES) == "10.0.0.1"
    assert choose("n1.cluster", addresses=ADDRESSES) == "n1.cluster"
    assert choose("192.168.0.1", addresses={"n1": ADDRESSES["n1"]}) == "192.168.0.1"


def test_ranks_are_bound_only_where_nobody_else_has_bound_them() -> None:
    """The cores beside each GPU come from the kernel; on one NUMA node, or a part of the cores, ranks stay unbound."""
    node = "/sys/devices/system/node/node"
    gpu = "/sys/bus/pci/drivers/nvidia/0000"
    files = {f"{node}{number}/cpulist": f"{number}\n" for number in (0, 1, 10, 2)}
    files |= {f"{gpu}:c1:00.0/local_cpulist": "1\n", f"{gpu}:17:00.0/local_cpulist": "0\n"}
    places = parse_memory_nodes(FileContents(files=files))
    assert places == MemoryNodes(nodes=((0,), (1,), (2,), (10,)), gpus=((0,), (1,)))
    assert parse_memory_nodes(FileContents(files={f"{node}0/cpulist": "0-7\n"})) == MemoryNodes()
    for cores, transport, bound in (
        (8, TransportKind.SSH, places.gpus),
        (4, TransportKind.SSH, ()),
        (8, TransportKind.SLURM, ()),
    ):
        cluster = Cluster(nodes=(Node(name="n1", transport=transport),))
        answers: dict[str, dict[str, Any]] = {CORES.name: {"n1": cores}}
        answers |= {ONLINE_CORES.name: {"n1": 8}, MEMORY_NODES.name: {"n1": places}}
        facts = Facts(cluster=cluster, contacts={}, answers=answers)
        assert collect_node_resources(facts)["n1"].gpu_cores == bound
