"""From cluster, request and seats to what is started where."""

import subprocess
from dataclasses import replace
from typing import Any

import pytest

from aboard.core.cluster.cluster import Cluster, PlannedWrites
from aboard.core.cluster.container import Container
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_resources import NodeResources
from aboard.core.plan.launch_request import LaunchRequest, resolve_request
from aboard.core.plan.plan import MasterAddress, Plan
from aboard.core.plan.plan_builder import build_plan, find_rank_zero_node
from aboard.core.plan.program import Program, ProgramKind
from aboard.diagnoses import InputError

SCRIPT = Program(kind=ProgramKind.SCRIPT, target="train.py", args=("--lr", "1e-4"))
REQUEST = LaunchRequest(program=SCRIPT)


def _plan(*nodes: Node, request: LaunchRequest = REQUEST, seat: NodeResources | None = None, port: int = 29500) -> Plan:
    cluster = Cluster(nodes=nodes, source="hostfile")
    seats = {
        node.name: seat or NodeResources(address=f"10.0.0.{at}", interface="eth1") for at, node in enumerate(nodes, 1)
    }
    return build_plan(
        cluster, request, seats, run="r", master=MasterAddress(node=nodes[0].name, address="10.0.0.1", port=port)
    )


def _env(made: Plan, name: str) -> list[str | None]:
    return [start.env.get(name) for _, start in made.starts()]


def test_uneven_slots_number_ranks_in_a_row() -> None:
    """2 + 1: ranks 0 and 1 on the first node, 2 on the second, and each rank is told so as torchrun tells it."""
    made = _plan(Node(name="n1", slots=2), Node(name="n2", slots=1))
    assert [(node, start.rank) for node, start in made.starts()] == [("n1", 0), ("n1", 1), ("n2", 2)]
    assert _env(made, "RANK") == ["0", "1", "2"]
    assert _env(made, "LOCAL_RANK") == ["0", "1", "0"]
    assert _env(made, "LOCAL_WORLD_SIZE") == ["2", "2", "1"]
    assert _env(made, "WORLD_SIZE") == ["3"] * 3
    assert _env(made, "GROUP_RANK") == ["0", "0", "1"]
    assert _env(made, "MASTER_ADDR") == ["10.0.0.1"] * 3
    assert _env(made, "MASTER_PORT") == ["29500"] * 3
    # Else rank 0 would wait for a store that no agent hosts.
    assert _env(made, "TORCHELASTIC_USE_AGENT_STORE") == ["False"] * 3


@pytest.mark.parametrize(
    ("node", "seat", "request_", "ranks"),
    [
        (Node(name="n1"), NodeResources(address="a"), REQUEST, 1),
        (Node(name="n1"), NodeResources(address="a", accelerators=8), REQUEST, 8),
        (Node(name="n1", slots=4), NodeResources(address="a", accelerators=8), REQUEST, 4),
        (Node(name="n1", slots=4, picked=(1, 3)), NodeResources(address="a"), REQUEST, 2),
        (Node(name="n1", slots=4), NodeResources(address="a"), replace(REQUEST, ranks=2), 2),
    ],
)
def test_how_many_ranks(node: Node, seat: NodeResources, request_: LaunchRequest, ranks: int) -> None:
    """What was asked for, else what was picked, else the slots, else the accelerators, else one."""
    assert _plan(node, seat=seat, request=request_).world == ranks


def test_a_node_without_slots_starts_nothing_and_is_not_the_master() -> None:
    """It is checked, and no rank is numbered on it."""
    nodes = (Node(name="login", slots=0), Node(name="n1", slots=1))
    assert [part.node.name for part in _plan(*nodes).parts] == ["n1"]
    assert find_rank_zero_node(Cluster(nodes=nodes)).name == "n1"


def test_ranks_know_from_the_first_start_how_often_they_may_start_again() -> None:
    """As with torchrun: scripts compare it with TORCHELASTIC_RESTART_COUNT."""
    (start,) = _plan(Node(name="n1", slots=1), request=replace(REQUEST, restarts=3)).parts[0].starts
    assert (start.env["TORCHELASTIC_MAX_RESTARTS"], start.env["TORCHELASTIC_RESTART_COUNT"]) == ("3", "0")


def test_what_a_rank_runs() -> None:
    """The node's own Python and directory; a module by -m; a program by itself; DeepSpeed's --local_rank if asked."""
    node = Node(name="n1", slots=2, python="/opt/py", workdir="/job")
    first, second = _plan(node).parts[0].starts
    assert first.argv == ("/opt/py", "train.py", "--lr", "1e-4")
    assert first.cwd == "/job"
    module = replace(REQUEST, program=Program(kind=ProgramKind.MODULE, target="pkg.train"))
    assert _plan(node, request=module).parts[0].starts[0].argv == ("/opt/py", "-m", "pkg.train")
    program = replace(REQUEST, program=Program(kind=ProgramKind.PROGRAM, target="./run.sh", args=("a b",)))
    assert _plan(node, request=program).parts[0].starts[0].argv == ("./run.sh", "a b")
    told = replace(REQUEST, program=replace(SCRIPT, local_rank="--local_rank"))
    assert _plan(node, request=told).parts[0].starts[1].argv[2] == "--local_rank=1"
    assert second.child == "1"


def test_setup_lines_come_first_and_stop_at_the_first_that_fails() -> None:
    """They are one bash with what they set; what they print is not the program's stdout."""
    node = Node(name="n1", setup=("X=1; echo noise", "export X"), python="sh")
    program = Program(kind=ProgramKind.SCRIPT, target="-c", args=('echo "X=$X"',))
    done = subprocess.run(program.argv(node, 0), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "X=1\n")
    broken = replace(node, setup=("true", "no-such-program", "echo never"))
    done = subprocess.run(program.argv(broken, 0), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr.endswith("aboard: line 2 of setup failed: no-such-program\n")


def test_env_of_users_wins_and_the_contract_stays() -> None:
    """The request's over the node's over what the check chose; nobody's over RANK."""
    node = Node(name="n1", slots=1, env={"NCCL_SOCKET_IFNAME": "ib0", "A": "node", "OMP_NUM_THREADS": "3"})
    made = _plan(node, Node(name="n2", slots=1), request=replace(REQUEST, env={"A": "request"}))
    assert _env(made, "NCCL_SOCKET_IFNAME") == ["ib0", "eth1"]
    assert _env(made, "GLOO_SOCKET_IFNAME") == ["eth1", "eth1"]
    assert _env(made, "A") == ["request", "request"]
    assert _env(made, "OMP_NUM_THREADS")[0] == "3"


def test_threads_are_the_cores_of_each_rank() -> None:
    """16 cores and 4 ranks make 4; where cores aren't known, torchrun's 1."""
    four = Node(name="n1", slots=4)
    assert _env(_plan(four, seat=NodeResources(address="a", cores=16)), "OMP_NUM_THREADS") == ["4"] * 4
    assert _env(_plan(four, seat=NodeResources(address="a")), "OMP_NUM_THREADS") == ["1"] * 4
    assert _env(_plan(four, request=replace(REQUEST, threads=7)), "OMP_NUM_THREADS") == ["7"] * 4


@pytest.mark.parametrize(("exported", "threads"), [("3", 3), ("", None), ("0", None), ("4,2", None)])
def test_threads_of_the_shell(exported: str, threads: int | None) -> None:
    """As torchrun does it: a number that the user exported wins over the cores, and --threads over both."""
    cluster, shell = Cluster(nodes=(Node(name="n1", slots=1),), source="test"), {"OMP_NUM_THREADS": exported}
    assert resolve_request(cluster, REQUEST, None, shell=shell)[1].threads == threads
    assert resolve_request(cluster, replace(REQUEST, threads=7), None, shell=shell)[1].threads == 7


def test_picked_slots_are_the_devices() -> None:
    """`--include n1:1,3` shows devices 1 and 3 to both ranks; without it nothing is said of devices."""
    assert _env(_plan(Node(name="n1", slots=4, picked=(1, 3))), "CUDA_VISIBLE_DEVICES") == ["1,3", "1,3"]
    assert _env(_plan(Node(name="n1", slots=1)), "CUDA_VISIBLE_DEVICES") == [None]


def test_picked_slots_of_a_slurm_job_are_its_devices() -> None:
    """Slot 1 is the second GPU of the job, wherever that is on the node."""
    seat = NodeResources(address="a", visible_gpus=("2", "GPU-7f"))
    assert _env(_plan(Node(name="n1", slots=2, picked=(1,)), seat=seat), "CUDA_VISIBLE_DEVICES") == ["GPU-7f"]


def test_one_node_names_no_interface() -> None:
    """Its ranks meet on loopback, whatever its cards are called."""
    assert _env(_plan(Node(name="n1", slots=1)), "GLOO_SOCKET_IFNAME") == [None]


def test_binding_spreads_ranks_over_numa_nodes() -> None:
    """Four ranks on two NUMA nodes: two on each, in order."""
    seat = NodeResources(address="a", memory_nodes=((0, 1, 2, 3), (4, 5, 6, 7)))
    made = _plan(Node(name="n1", slots=4), seat=seat, request=replace(REQUEST, bind=True))
    assert [start.cores for _, start in made.starts()] == [(0, 1, 2, 3)] * 2 + [(4, 5, 6, 7)] * 2
    assert _plan(Node(name="n1", slots=1), seat=seat).parts[0].starts[0].cores == ()


def test_ranks_are_bound_to_the_cores_beside_their_gpu() -> None:
    """Of those picked by number, in the order of the bus; the user's own binding and --no-bind win."""
    near, far = (0, 1, 2, 3), (4, 5, 6, 7)
    seat = NodeResources(address="a", memory_nodes=(near, far), gpu_cores=(near, near, far, far))
    made = _plan(Node(name="n1", slots=4), seat=seat)
    assert [start.cores for _, start in made.starts()] == [near, near, far, far]
    assert _env(made, "CUDA_DEVICE_ORDER") == ["PCI_BUS_ID"] * 4
    picked = _plan(Node(name="n1", slots=4, picked=(1, 3)), seat=seat)
    assert [start.cores for _, start in picked.starts()] == [near, far]
    wrapped = Program(kind=ProgramKind.PROGRAM, target="/usr/bin/numactl", args=("-N", "0", "python", "train.py"))
    for request in (
        replace(REQUEST, bind=False),
        replace(REQUEST, program=wrapped),
        replace(REQUEST, env={"OMP_PLACES": "cores"}),
        replace(REQUEST, ranks=5),
    ):
        made = _plan(Node(name="n1", slots=5), seat=seat, request=request)
        assert {start.cores for _, start in made.starts()} == {()}


def test_slots_are_counted_as_nvidia_smi_counts_them() -> None:
    """CUDA's own order puts the fastest GPU first; the user's variable wins."""
    assert _env(_plan(Node(name="n1", slots=2, picked=(1,))), "CUDA_DEVICE_ORDER") == ["PCI_BUS_ID"]
    own = Node(name="n1", slots=2, picked=(1,), env={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    assert _env(_plan(own), "CUDA_DEVICE_ORDER") == ["FASTEST_FIRST"]
    assert _env(_plan(Node(name="n1", slots=2)), "CUDA_DEVICE_ORDER") == [None] * 2


def test_secrets_are_known_by_name() -> None:
    """Their values may appear nowhere; a switch that only sounds like one is no secret."""
    node = Node(name="n1", env={"HF_TOKEN": "x", "WANDB_API_KEY": "y", "TOKENIZERS_PARALLELISM": "false"})
    (_, start), *_ = _plan(node).starts()
    assert set(start.secrets) == {"HF_TOKEN", "WANDB_API_KEY"}


def test_containers_see_the_directory_that_the_run_writes() -> None:
    """At its own path; a node without a container has it anyway."""
    nodes = (Node(name="n1", container=Container(runtime="podman", image="train")), Node(name="n2"))
    cluster = Cluster(nodes=nodes, writes=PlannedWrites(path="/scratch/out", size=1))
    seats = {node.name: NodeResources(address="10.0.0.1") for node in nodes}
    made = build_plan(cluster, REQUEST, seats, run="r", master=MasterAddress(node="n1", address="10.0.0.1"))
    assert [start.container and start.container.directories for _, start in made.starts()] == [("/scratch/out",), None]


@pytest.mark.parametrize(
    ("nodes", "change", "seen"),
    [
        ((Node(name="n1", slots=0),), {}, "there are no slots on n1"),
        ((Node(name="n1"), Node(name="n2")), {"nodes": 3}, "3 nodes were requested, but there are 2: n[1-2]"),
        ((Node(name="n1", slots=4),), {"ranks": 8}, "n1 has 4 slots, but 8 ranks were requested"),
        ((Node(name="n1", env={"RANK": "0"}),), {}, "RANK differs by rank"),
        ((Node(name="n1"),), {"env": {"LOCAL_RANK": "1"}}, "LOCAL_RANK differs by rank"),
    ],
)
def test_what_can_not_be_had_is_refused(nodes: tuple[Node, ...], change: dict[str, Any], seen: str) -> None:
    """Never quietly smaller, never quietly other than asked for."""
    with pytest.raises(InputError, match="launch-plan") as raised:
        _plan(*nodes, request=replace(REQUEST, **change))
    assert seen in raised.value.seen
