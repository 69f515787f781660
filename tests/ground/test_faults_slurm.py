"""Faults of Slurm: each is seen as the ordinary user, heals, and leaves every node idle and the files as they were."""

from collections.abc import Iterator
from subprocess import PIPE, CompletedProcess

import pytest
from deadlines import wait_until
from launching import build_sandbox

from aboard.diagnoses import SandboxError
from aboard.sandbox import Sandbox
from aboard.sandbox.faults import FAULTS, inject_fault, inject_temporarily, list_active_faults
from aboard.sandbox.faults.slurm.daemons import MungeClock, SlurmctldStopped, SlurmdKilled
from aboard.sandbox.faults.slurm.node_state import FewSrunPorts, NodeDrained, PrologFails
from aboard.sandbox.faults.slurm.slurm_fault import SlurmFault
from aboard.sandbox.slurm import wait_until_ready

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("slurm-faults")]

# Slurm tells of a refused step at once; the rest of srun's patience is not the subject here.
SRUN = ("timeout", "15", "srun", "-w", "n2", "-N1", "-n1")
# Files, and what runs: the daemons with their first words.
LOOK = """
find /etc/slurm /etc/munge /dev/shm /run/munge /var/lib/aboard-sandbox -type f ! -name '*.pid' -exec sha256sum {} + |
    sort
ps -eo user=,args= | grep -E 'munged|slurmd|slurmctld' | grep -v -e grep -e defunct | sort
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """Two nodes with Slurm that tests share."""
    with build_sandbox("slurm-faults", nodes=2, slurm=True) as made:
        yield made


@pytest.fixture(autouse=True)
def no_trace(cluster: Sandbox) -> Iterator[None]:
    """What is healed has left no trace: files and daemons are the same, and every node is idle."""
    before = look(cluster)
    yield
    assert list_active_faults(cluster) == {}
    wait_until(lambda: states(cluster) == {"n1": "idle", "n2": "idle"}, 60)
    assert look(cluster) == before


def look(cluster: Sandbox) -> list[list[str]]:
    return [host.run(["sh", "-c", LOOK], root=True).stdout.splitlines() for host in cluster.hosts.values()]


def states(cluster: Sandbox) -> dict[str, str]:
    found = cluster.head.run(["sinfo", "--noheader", "--Node", "--format=%N %T"])
    return wait_until_ready.parse_node_states(found.stdout)


def srun_on_n2(cluster: Sandbox) -> "CompletedProcess[str]":
    return cluster.head.run([*SRUN, "hostname"])


def test_slurmd_killed(cluster: Sandbox) -> None:
    """A running step stays; the node doesn't answer, and is itself again with slurmd."""
    n2, echo = cluster.host("n2"), ("sh", "-c", "echo began; read line; echo $line")
    with cluster.head.popen([*SRUN, *echo], stdin=PIPE, stdout=PIPE, text=True) as step:
        assert step.stdout is not None
        assert step.stdout.readline() == "began\n"
        with inject_temporarily(cluster, n2, SlurmdKilled()):
            assert "slurmd" not in n2.run(["ps", "-eo", "comm="]).stdout.split()
            assert step.communicate("stays\n", timeout=30)[0] == "stays\n"


def test_slurmctld_stopped(cluster: Sandbox) -> None:
    """Commands get no answer; a job that runs meanwhile is still known afterwards."""
    job = cluster.head.run(["sbatch", "--parsable", "-o", "/dev/null", "--wrap=sleep 300"]).stdout.strip()
    wait_until(lambda: cluster.head.run(["squeue", "-h", "-o", "%T"]).stdout == "RUNNING\n", 20)
    with inject_temporarily(cluster, cluster.head, SlurmctldStopped()):
        assert "DOWN" in cluster.head.run(["scontrol", "ping"]).stdout
    assert cluster.head.run(["squeue", "-h", "-o", "%i %T"]).stdout == f"{job} RUNNING\n"
    assert cluster.head.run(["scancel", job]).returncode == 0


def test_munge_clock(cluster: Sandbox) -> None:
    """A credential of the node is from the future, and Slurm rejects what the node asks."""
    with inject_temporarily(cluster, cluster.host("n2"), MungeClock()):
        credential = cluster.host("n2").run(["munge", "-n"]).stdout
        assert "Rewound credential" in cluster.head.run(["unmunge"], input=credential).stdout
        assert "Zero Bytes were transmitted or received" in cluster.host("n2").run(["sinfo"]).stderr


def test_node_drained(cluster: Sandbox) -> None:
    """The reason is shown, and a job for the node waits for it."""
    with inject_temporarily(cluster, cluster.host("n2"), NodeDrained(reason="fan is loud")):
        assert states(cluster)["n2"] == "drained"
        assert "fan is loud" in cluster.head.run(["sinfo", "-R"]).stdout
        refused = cluster.head.run(["srun", "--immediate=1", "-w", "n2", "-N1", "true"])
        assert refused.returncode != 0
    assert srun_on_n2(cluster).stdout == "n2\n"


def test_prolog_fails(cluster: Sandbox) -> None:
    """The job fails with the prolog's name and its node, which is drained until it is healed."""
    with inject_temporarily(cluster, cluster.host("n2"), PrologFails()):
        assert "failed on node n2: Job prolog failed" in srun_on_n2(cluster).stderr
        wait_until(lambda: states(cluster)["n2"].startswith("drain"), 20)
    assert srun_on_n2(cluster).stdout == "n2\n"


def test_few_srun_ports(cluster: Sandbox) -> None:
    """One srun works; of four at once some say that the ports are exhausted."""
    many = "for i in 1 2 3 4; do srun --overlap -N1 -n1 sleep 2 & done; wait"
    with inject_temporarily(cluster, cluster.head, FewSrunPorts()):
        assert srun_on_n2(cluster).stdout == "n2\n"
        said = cluster.head.run(["salloc", "-N1", "sh", "-c", many]).stderr
    assert "all ports in range (61001, 61006) exhausted" in said


def test_every_fault_of_slurm_is_tried() -> None:
    """One test for each, by its name."""
    kinds = [kind for kind in FAULTS if issubclass(kind, SlurmFault)]
    assert kinds
    assert all(f"test_{kind.name.replace('-', '_')}" in globals() for kind in kinds)


def test_the_wrong_host_is_refused_with_the_right_one(cluster: Sandbox) -> None:
    """The head alone has slurmctld, and slurmd on nodes alone."""
    for host, fault, right in (
        (cluster.host("n1"), SlurmctldStopped(), "--node head"),
        (cluster.head, SlurmdKilled(), "--node n1"),
        (cluster.head, FewSrunPorts(ports=1), "--ports 6"),
    ):
        with pytest.raises(SandboxError) as caught:
            inject_fault(cluster, host, fault)
        assert right in caught.value.fix
