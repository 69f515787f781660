"""The nodes, CPUs and GPUs of a Slurm job: from its environment and from what scontrol says."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aboard.config.cluster_loader import guess_nodes, load_cluster
from aboard.config.slurm_allocation import read_allocation
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.head_machine import HeadMachine
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.probes.facts import Facts
from aboard.core.slurm.allocation import AllocatedNode, SlurmAllocation, expand_counts, parse_allocation
from aboard.core.slurm.job_nodes import reassign_recorded_nodes
from aboard.diagnoses import AboardError, InputError, Unreachable
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.gpu.nvidia_smi import DRIVER, GpuDriver
from aboard.doctor.gpu.visible_devices import VISIBLE
from aboard.engine.node_resources import collect_node_resources
from aboard.transport.slurm.slurm_transport import SlurmTransport

HERE = HeadMachine(names=frozenset({"n1"}), addresses=("10.0.0.1",), user="alice")
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_CPUS_PER_NODE": "64(x2),32"}
# Slurm 22.05's own words, without the lines that nobody reads.
SHOWN = """\
JobId=7 JobName=train
   JobState=RUNNING Reason=None Dependency=(null)
   ReqNodeList=(null) ExcNodeList=n9
   NodeList=n[1-3]
   BatchHost=n1
   JOB_GRES=gpu:a100:5,gpu:h100:1
     Nodes=n[1-2] CPU_IDs=0-63 Mem=0 GRES=gpu:a100:2(IDX:0,3)
     Nodes=n3 CPU_IDs=0-31 Mem=0 GRES=gpu:a100:1(IDX:0),gpu:h100:1(IDX:1),shard:4(IDX:0)
   TresPerJob=gres:gpu:6
"""


def named(name: str, cpus: int | None = None, gpus: int | None = None, group: int | None = None) -> AllocatedNode:
    return AllocatedNode(name=name, cpus=cpus, gpus=gpus, group=group)


def slots(cluster: Cluster) -> dict[str, int | None]:
    assert {node.transport for node in cluster} == {TransportKind.SLURM}
    return {node.name: node.slots for node in cluster}


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_gpus_of_each_node() -> None:
    """A job may have another number of CPUs and of GPUs, of several types, on each node."""
    assert parse_allocation(JOB, SHOWN) == SlurmAllocation(
        job=7, nodes=(named("n1", 64, 2), named("n2", 64, 2), named("n3", 32, 2))
    )


def test_a_heterogeneous_job() -> None:
    """Its nodes are those of all components, and each knows its component, which srun needs."""
    env = {
        "SLURM_JOB_ID": "7",
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NODELIST": "n1",  # in a batch script, that of the first component
        "SLURM_JOB_NODELIST_HET_GROUP_0": "n1",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "m[2-3]",
        "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0": "8",
        "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "4(x2)",
    }
    details = "   JobState=RUNNING\n     Nodes={} CPU_IDs=0 Mem=0 GRES={}\n"
    shown = f"JobId=7 HetJobId=7\n{details.format('n1', 'gpu:2(IDX:0-1)')}\nJobId=8\n{details.format('m[2-3]', '')}"
    assert parse_allocation(env, shown) == SlurmAllocation(
        job=7, nodes=(named("n1", 8, 2, 0), named("m2", 4, 0, 1), named("m3", 4, 0, 1))
    )


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({}, [None, None, None]),
        ({"SLURM_GPUS_PER_NODE": "4"}, [4, 4, 4]),
        ({"SLURM_GPUS_PER_NODE": "a100:2,h100:1"}, [3, 3, 3]),
        ({"SLURM_GPUS_ON_NODE": "2", "SLURMD_NODENAME": "n2"}, [None, 2, None]),
        ({"SLURM_GPUS_ON_NODE": "2", "SLURMD_NODENAME": "login"}, [None, None, None]),
    ],
)
def test_gpus_where_scontrol_does_not_answer(variables: dict[str, str], gpus: list[int | None]) -> None:
    """The job's variables say what was requested; what they don't say is unknown, not zero."""
    found = parse_allocation({**JOB, **variables})
    assert found is not None
    assert [node.gpus for node in found.nodes] == gpus


@pytest.mark.parametrize(
    ("text", "counts"), [("64(x2),32", (64, 64, 32)), ("1", (1,)), ("", ()), ("2(x", ()), ("2,", ()), ("x(x2)", ())]
)
def test_counts_of_nodes(text: str, counts: tuple[int, ...]) -> None:
    """A short form that is not Slurm's counts nothing."""
    assert expand_counts(text) == counts


def test_nodes_that_only_scontrol_lists() -> None:
    """A shell with nothing but the job's id still finds the nodes."""
    found = parse_allocation({"SLURM_JOB_ID": "7"}, SHOWN)
    assert found is not None
    assert [node.name for node in found.nodes] == ["n1", "n2", "n3"]


def test_no_job() -> None:
    """Without a job's id, leftover variables mean nothing."""
    assert parse_allocation({"SLURM_JOB_NODELIST": "n[1-3]"}, SHOWN) is None
    assert parse_allocation({"SLURM_JOB_ID": "7"}) is None


def job(*gpus: int | None) -> SlurmAllocation:
    return SlurmAllocation(job=7, nodes=tuple(named(f"n{index}", gpus=count) for index, count in enumerate(gpus, 1)))


def load(*sources: str, allocation: SlurmAllocation, **options: Any) -> Cluster:
    return load_cluster(sources, here=HERE, toward=lambda _: ["10.0.0.1"], allocation=allocation, **options)


def test_slots_are_the_jobs_gpus() -> None:
    """Also of the node that Aboard runs on; a node without GPUs in a job with some runs no rank."""
    cluster = load(allocation=job(2, 1, 0))
    assert (cluster.source, slots(cluster)) == ("Slurm job 7", {"n1": 2, "n2": 1, "n3": 0})


def test_a_job_without_gpus() -> None:
    """One process for each node if Slurm gave the job none; the node decides if Slurm does not count GPUs."""
    assert slots(load(allocation=job(0, 0))) == {"n1": None, "n2": None}
    assert slots(load(allocation=job(None, None))) == {"n1": None, "n2": None}


def test_gpus_that_the_job_does_not_have() -> None:
    """A node's GPUs are not used if Slurm gave the job none of them; those of the job have CUDA's names."""
    driver = GpuDriver(version="550", cards=8, switches=0)
    answers: dict[str, dict[str, Any]] = {
        DRIVER.name: dict.fromkeys(("n1", "n2"), driver),
        VISIBLE.name: dict.fromkeys(("n1", "n2"), Untrusted("2,5")),
    }
    without = collect_node_resources(Facts(cluster=load(allocation=job(0, 0)), contacts={}, answers=answers))
    assert [each.accelerators for each in without.values()] == [None, None]
    uncounted = collect_node_resources(Facts(cluster=load(allocation=job(None, None)), contacts={}, answers=answers))
    assert [each.accelerators for each in uncounted.values()] == [8, 8]
    assert {each.visible_gpus for each in uncounted.values()} == {("2", "5")}


def test_named_nodes_of_the_job(files: Path) -> None:
    """They are reached by srun under Slurm's names; slots that were written stay, and ssh's port and user are gone."""
    (files / "aboard.yaml").write_text("cluster: {nodes: ['n1 slots=1', n2], user: alice, port: 2222}")
    cluster = load("aboard.yaml", allocation=job(2, 2, 2))
    assert (cluster.source, slots(cluster)) == ("aboard.yaml", {"n1": 1, "n2": 2})
    assert {(node.port, node.user) for node in cluster} == {(None, None)}
    assert load("n2.cluster.example", allocation=job(2, 2)).nodes == (
        Node(
            name="n2",
            address="n2.cluster.example",
            slots=2,
            env={},
            step_options=("--gres=gpu:2",),
            transport=TransportKind.SLURM,
        ),
    )
    assert guess_nodes(here=HERE, allocation=job(2, 2, 2), allow_file=True) == cluster.nodes


def test_a_step_gets_all_gpus_of_the_job_on_its_nodes() -> None:
    """Nodes with different numbers need a step each; a node without GPUs in a job that has some asks for none."""
    even, uneven = load(allocation=job(2, 2)), load(allocation=job(2, 1, 0))
    assert [node.step_options for node in even] == [("--gres=gpu:2",)] * 2
    assert [node.step_options for node in uneven] == [("--gpus=2",), ("--gpus=1",), ("--gres=none",)]
    assert [node.step_options for node in load(allocation=job(0, 0))] == [("--gres=none",)] * 2
    assert [node.step_options for node in load(allocation=job(None, None))] == [()] * 2
    components = SlurmAllocation(job=7, nodes=(named("n1", gpus=2, group=0), named("n2", gpus=0, group=1)))
    options = [node.step_options for node in load(allocation=components)]
    assert options == [("--het-group=0", "--gres=gpu:2"), ("--het-group=1", "--gres=none")]


def test_settings_of_the_cluster_apply_to_the_job(files: Path) -> None:
    """A file that names no nodes still says which Python and directory they get."""
    (files / "aboard.yaml").write_text("cluster: {python: /opt/python3, workdir: /data}")
    cluster = load(allocation=job(2, 2), allow_file=True)
    assert slots(cluster) == {"n1": 2, "n2": 2}
    assert {(node.python, node.workdir) for node in cluster} == {("/opt/python3", "/data")}


def test_nodes_outside_the_job_stay_with_ssh() -> None:
    """As they were typed: also this machine, and nodes with another user."""
    assert [node.transport for node in load("m1", "m2", allocation=job(2, 2))] == [TransportKind.SSH] * 2
    assert [node.transport for node in load("localhost", allocation=job(2, 2))] == [TransportKind.LOCAL]
    assert [node.transport for node in load("bob@n2", allocation=job(2, 2))] == [TransportKind.SSH]


def test_nodes_inside_and_outside_the_job_are_refused() -> None:
    """The fix leaves the job's nodes, and works."""
    with pytest.raises(InputError) as caught:
        load("n[1-3]", allocation=job(2, 2))
    (problem,) = caught.value.problems
    assert problem.seen == "n[1-2] belong to Slurm job 7, but n3 does not"
    assert problem.fix.startswith('add: --include "n[1-2]"    # only')
    assert slots(load("n[1-3]", allocation=job(2, 2), include="n[1-2]")) == {"n1": 2, "n2": 2}


def test_nodes_of_an_earlier_job() -> None:
    """By srun only if they belong to this job too, with its GPUs; else over ssh, and nothing else changes."""
    nodes = [Node(name=name, transport=TransportKind.SLURM) for name in ("n1", "n9")]
    local = Node(name="head", transport=TransportKind.LOCAL)
    first, second, here = reassign_recorded_nodes([*nodes, local], job(2, 2))
    assert (first.transport, first.step_options) == (TransportKind.SLURM, ("--gres=gpu:2",))
    assert (second.transport, here.transport) == (TransportKind.SSH, TransportKind.LOCAL)
    assert [node.transport for node in reassign_recorded_nodes(nodes, None)] == [TransportKind.SSH] * 2


def test_srun_outside_a_job(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would submit a job of its own: it is not started."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    (files / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(files))
    node = Node(name="n1", transport=TransportKind.SLURM)
    with pytest.raises(Unreachable, match="not run inside a Slurm job"):
        asyncio.run(SlurmTransport().open(node, lambda _phase: None))


def install_scontrol(folder: Path, script: str) -> dict[str, str]:
    """A scontrol that runs this script; returns the environment of a job."""
    program = folder / "scontrol"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {**JOB, "PATH": f"{folder}:/usr/bin:/bin"}


@pytest.mark.parametrize(("gres", "gpus"), [("gpu,mps", 0), ("(null)", None), ("craynetwork", None)])
def test_a_cluster_whose_slurm_does_not_count_gpus(files: Path, gres: str, gpus: int | None) -> None:
    """A job without GPUs has none only where Slurm allocates them."""
    (files / "job").write_text("   JobState=RUNNING\n     Nodes=n[1-3] CPU_IDs=0 Mem=0 GRES=\n")
    (files / "config").write_text(f"Configuration data\nGresTypes               = {gres}\n")
    env = install_scontrol(files, f'case "$2" in config) cat {files}/config ;; *) cat {files}/job ;; esac')
    found = read_allocation(env)
    assert found is not None
    assert [node.gpus for node in found.nodes] == [gpus] * 3


@pytest.mark.parametrize(
    "script",
    [
        "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
        "echo 'JobId=7 JobName=x'; echo '   JobState=TIMEOUT Reason=TimeLimit'",
    ],
)
def test_a_shell_of_a_job_that_ended(files: Path, script: str) -> None:
    """Its nodes may belong to others."""
    with pytest.raises(AboardError) as caught:
        read_allocation(install_scontrol(files, script))
    assert caught.value.code == "slurm-job-over"


def test_a_job_whose_nodes_cannot_be_read_is_never_run_on_this_machine(files: Path) -> None:
    """It is refused: the other nodes would stay idle."""
    env = install_scontrol(files, "exit 1")
    with pytest.raises(AboardError) as caught:
        read_allocation({**env, "SLURM_JOB_NODELIST": "gpu[07"})
    assert caught.value.code == "slurm-node-list"


def test_scontrol_that_is_missing() -> None:
    """The environment is enough to find the nodes."""
    found = read_allocation({**JOB, "PATH": "/nonexistent"})
    assert found is not None
    assert [node.name for node in found.nodes] == ["n1", "n2", "n3"]
