"""Failures of Slurm, injected into a real one: `aboard check` and `aboard why` name each of them, with its node."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from deadlines import slowness, wait_until
from launching import build_sandbox

from aboard.sandbox import Sandbox
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.slurm.daemons import MungeClock, SlurmctldStopped, SlurmdKilled
from aboard.sandbox.faults.slurm.node_state import FewSrunPorts, NodeDrained, PrologFails

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("slurm")]

CHECK = ("aboard", "check", "--json", "--only", "reach", "--only", "slurm")
REQUEST = "cluster:\n  slurm: {nodes: 2}\n"
DRAINED = "bad DIMM"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """Two nodes with Slurm that tests share; each leaves no job."""
    with build_sandbox("slurm-check", nodes=2, slurm=True) as made:
        # A check may take longer than 20 s on a busy machine: the node would be down by then, for another finding.
        for host in made.hosts.values():
            patient = ["sed", "-i", "s/^SlurmdTimeout=.*/SlurmdTimeout=300/", "/etc/slurm/slurm.conf"]
            host.run(patient, root=True).check_returncode()
        made.head.run(["scontrol", "reconfigure"], root=True).check_returncode()
        yield made


class Allocation:
    """A job of both nodes without a process, for commands on the head."""

    def __init__(self, box: Sandbox) -> None:
        self._box = box
        done = box.head.run(["salloc", "-N2", "--no-kill", "--no-shell"])
        assert done.returncode == 0, done.stderr
        self._number = done.stderr.split()[-1]

    def check(self, *settings: str) -> list[tuple[str, list[str]]]:
        """The codes and nodes of the findings above info, the worst first."""
        env = ["env", f"SLURM_JOB_ID={self._number}", "SLURM_JOB_NODELIST=n[1-2]", *settings]
        done = self._box.head.run([*env, *CHECK], timeout=60 * slowness())
        findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        return [(each["code"], each["nodes"]) for each in findings if each["severity"] != "info"]

    def end(self) -> None:
        self._box.head.run(["scancel", self._number])
        wait_until(lambda: not self._box.head.run(["squeue", "--noheader"]).stdout.strip(), 60)


@pytest.fixture
def job(cluster: Sandbox) -> Iterator[Allocation]:
    made = Allocation(cluster)
    yield made
    made.end()


def test_a_job_in_order_has_no_finding(job: Allocation) -> None:
    """Both nodes are reached by srun, and Slurm has nothing against them."""
    assert job.check() == []


@pytest.mark.parametrize(
    ("fault", "host", "found"),
    [
        (SlurmdKilled(), "n2", ("reach-no-slurmd", ["n2"])),
        (MungeClock(), "n2", ("host-clock", ["n2"])),
        (NodeDrained(reason=DRAINED), "n2", ("slurm-node-drained", ["n2"])),
        # One srun takes four; the steps that did not start are folded under it.
        (FewSrunPorts(ports=2), "head", ("slurm-port-range", ["n1", "n2"])),
        # Each command of Slurm waits ten seconds or more for it.
        pytest.param(*(SlurmctldStopped(), "head", ("reach-no-slurmctld", ["n1", "n2"])), marks=pytest.mark.nightly),
    ],
    ids=lambda each: getattr(each, "name", None),
)
def test_each_fault_is_named(cluster: Sandbox, job: Allocation, fault: Fault, host: str, found: object) -> None:
    """The first finding has the right code, and no node is blamed for another one."""
    with inject_temporarily(cluster, cluster.host(host), fault):
        assert job.check()[0] == found
    # slurmctld takes a while to notice that slurmd is back.
    wait_until(lambda: job.check() == [], 60)


def test_a_prolog_that_fails_is_named(cluster: Sandbox) -> None:
    """Slurm then ends the job, which the other node's step finds; the cause comes first."""
    with inject_temporarily(cluster, cluster.host("n2"), PrologFails()):
        job = Allocation(cluster)
        assert job.check()[0] == ("reach-prolog", ["n2"])
        job.end()


def test_a_machine_without_srun_is_told_so(job: Allocation) -> None:
    """As in a container that has no Slurm client."""
    assert job.check("PATH=/usr/local/bin")[0] == ("reach-no-srun", ["n1", "n2"])


def test_a_job_that_waits_says_why(cluster: Sandbox) -> None:
    """From the login node: nodes that are drained, and a job on hold, each with the command that changes it."""
    assert cluster.head.run(["sh", "-c", "mkdir -p waits; cat > waits/aboard.yaml"], input=REQUEST).returncode == 0
    with inject_temporarily(cluster, cluster.host("n2"), NodeDrained(reason=DRAINED)):
        sent = cluster.head.run(["aboard", "launch", "-d", "--", "true"], cwd="/home/crew/waits")
        assert sent.returncode == 0, sent.stderr
        wait_until(lambda: "[slurm-unavailable]" in why(cluster), 30, lambda: why(cluster))
        assert "sinfo --list-reasons" in why(cluster)
        number = cluster.head.run(["squeue", "--noheader", "--format=%i"]).stdout.strip()
        assert cluster.head.run(["scontrol", "hold", number]).returncode == 0
        wait_until(lambda: f"scontrol release {number}" in why(cluster), 30, lambda: why(cluster))
        assert cluster.head.run(["scancel", number]).returncode == 0


def why(cluster: Sandbox) -> str:
    done = cluster.head.run(["aboard", "why"], cwd="/home/crew/waits")
    return done.stdout + done.stderr
