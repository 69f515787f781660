"""How a job of Slurm ends, by hand or by accident: nothing of the run is left on any host, and the reason is said."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest
from deadlines import wait_until
from launching import build_sandbox, count_ranks

from aboard.sandbox import Sandbox
from aboard.sandbox.faults import inject_fault
from aboard.sandbox.faults.network.links import LinkDown
from aboard.sandbox.faults.slurm.daemons import SlurmdKilled

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("slurm-endings")]

# A rank that saves when it is told to stop, and its daemon, which Slurm does not find here: it has another parent,
# session and group.
RANK = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        time.sleep(600)
    os._exit(0)
def save(*_):
    os.write(1, b"saved\\n")
    os._exit(1)
signal.signal(signal.SIGTERM, save)
print("began", flush=True)
time.sleep(600)
"""
SCRIPT = "#!/bin/sh\n#SBATCH --no-kill\nexec aboard launch {words} -- {command}\n"
# Aboard runs it, and replaces its srun.
CAPTURED = """#!/bin/bash
#SBATCH --nodes=2
trap 'echo cleaned' EXIT
srun torchrun --nnodes 2 --nproc-per-node 1 /shared/rank.py
echo 'the next line'
"""
# What Slurm ends is over: nothing of it is started again.
RECOVERING = "--check none --restarts 3"


@contextmanager
def build_cluster(label: str, *, nodes: int) -> Iterator[Sandbox]:
    """Nodes with Slurm, and the script of the ranks."""
    with build_sandbox(label, nodes=nodes, slurm=True) as made:
        for name, text in (("rank.py", RANK), ("captured.sh", CAPTURED)):
            assert made.head.run(["tee", f"/shared/{name}"], input=text).returncode == 0
        yield made


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """Four nodes; the last test loses two of them."""
    with build_cluster("slurm-endings", nodes=4) as made:
        yield made


class Job:
    """A submitted job whose ranks have begun, with these `words` of the launch."""

    def __init__(
        self, box: Sandbox, name: str, *options: str, words: str = RECOVERING, command: str = "/shared/rank.py"
    ) -> None:
        self.box, self.out = box, f"/shared/{name}.out"
        script = SCRIPT.format(words=words, command=command)
        done = box.head.run(["sbatch", "--parsable", "-o", self.out, *options], input=script)
        assert done.returncode == 0, done.stderr
        self.number = done.stdout.strip()
        wait_until(lambda: "phase python" in self.said, 60, lambda: f"its ranks: {self.said}")

    @property
    def said(self) -> str:
        return self.box.head.run(["cat", self.out]).stdout

    @property
    def state(self) -> str:
        """As slurmctld says it; "unanswered" while it is too busy."""
        asked = self.box.head.run(["squeue", "-h", "-t", "all", "-o", "%T", "-j", self.number])
        return "unanswered" if asked.returncode else asked.stdout.strip()

    def wait_for_end(self, seconds: float) -> None:
        """Waits until Slurm has its nodes back, which a process that is left of it prevents."""
        wait_until(
            lambda: self.state not in {"RUNNING", "COMPLETING", "unanswered"}, seconds, lambda: f"its end: {self.said}"
        )


def users_processes(box: Sandbox) -> dict[str, list[str]]:
    """The user's processes on the nodes: all are of a job."""
    found: dict[str, list[str]] = {}
    for host in filter(lambda host: host.on, box.nodes):
        for pid in host.pids():
            try:
                proc = Path(f"/proc/{pid}")
                if proc.stat().st_uid == box.crew_id:
                    found.setdefault(host.name, []).append((proc / "cmdline").read_text().replace("\0", " ")[:80])
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def nothing_is_left(box: Sandbox, seconds: float = 10) -> None:
    wait_until(lambda: not users_processes(box), seconds, lambda: f"no processes: {users_processes(box)}")


def test_scancel(cluster: Sandbox) -> None:
    """The ranks are told to stop and save within KillWait, and their daemons end with them."""
    job = Job(cluster, "cancelled", "-N4")
    assert len(users_processes(cluster)) == 4
    assert cluster.head.run(["scancel", job.number]).returncode == 0
    job.wait_for_end(20)
    nothing_is_left(cluster)
    assert f"job {job.number} was cancelled" in job.said, job.said
    assert count_ranks(job.said, "saved") == 4, job.said
    assert "exit code 130" in job.said.splitlines()[-1]
    assert "attempt 2" not in job.said


def test_the_end_of_a_captured_script(cluster: Sandbox) -> None:
    """scancel, and the notice of the time limit: the ranks save first, then the script ends, with nothing left."""
    command = "sbatch /shared/captured.sh"
    ended = Job(cluster, "script-ended", "-w", "n[1-2]", "-N2", command=command)
    told = Job(cluster, "script-told", "-w", "n[3-4]", "-N2", "--time=60", "--signal=B:USR1@110", command=command)
    update = ["scontrol", "update", f"jobid={told.number}", "endtime=now+100"]
    assert cluster.head.run(update, root=True).returncode == 0
    assert cluster.head.run(["scancel", ended.number]).returncode == 0
    for job, reason in ((ended, "was cancelled"), (told, "time limit")):
        job.wait_for_end(60)
        assert reason in job.said, job.said
        assert count_ranks(job.said, "saved") == 2, job.said
        assert "cleaned" in job.said, job.said
    nothing_is_left(cluster)


def test_scancel_of_an_interactive_job(cluster: Sandbox) -> None:
    """The conductor in salloc's shell gets no signal, and yet its ranks save, and the reason is said."""
    typed = "echo $SLURM_JOB_ID; exec aboard launch --check none -- /shared/rank.py"
    with cluster.head.popen(["salloc", "-Q", "-N2", "sh", "-c", typed], stdout=PIPE, text=True) as shell:
        assert shell.stdout is not None
        number = shell.stdout.readline().strip()
        said = next(line for line in shell.stdout if "began" in line)
        assert cluster.head.run(["scancel", number]).returncode == 0
        said += shell.stdout.read()
    assert count_ranks(said, "saved") == 2, said
    assert f"job {number} was cancelled; exit code 130" in said.splitlines()[-1], said
    nothing_is_left(cluster)


def test_scancel_with_kill(cluster: Sandbox) -> None:
    """Even if Slurm kills the conductor and the agents at once, nothing is left behind."""
    job = Job(cluster, "killed", "-N4")
    assert cluster.head.run(["scancel", "--full", "--signal=KILL", job.number]).returncode == 0
    job.wait_for_end(30)
    nothing_is_left(cluster, 30)


def test_preemption(cluster: Sandbox) -> None:
    """The ranks save within the grace time, the reason is said, and the other job gets the nodes."""
    job = Job(cluster, "preempted", "-N4", "--exclusive", "-p", "preempt-cancel")
    assert len(cluster.head.run(["srun", "-N4", "--exclusive", "hostname"]).stdout.split()) == 4
    job.wait_for_end(20)
    nothing_is_left(cluster)
    assert f"job {job.number} is preempted" in job.said
    assert "attempt 2" not in job.said
    assert " saved" in job.said


def test_time_limit(cluster: Sandbox) -> None:
    """One job asked for a notice before its time is over, another did not: ranks of both save, with the reason."""
    told = Job(cluster, "told", "-w", "n[1-2]", "-N2", "--time=60", "--signal=B:USR1@110")
    late = Job(cluster, "late", "-w", "n[3-4]", "-N2", "--time=60")
    # Only now: a limit in minutes would count from the start, which takes long on a busy machine.
    for job, seconds in ((told, 100), (late, 1)):
        update = ["scontrol", "update", f"jobid={job.number}", f"endtime=now+{seconds}"]
        assert cluster.head.run(update, root=True).returncode == 0
    for job in (told, late):
        # slurmctld looks every 30 s.
        job.wait_for_end(60)
        assert count_ranks(job.said, "saved") == 2, job.said
        assert "time limit" in job.said.splitlines()[-1]
        assert "attempt 2" not in job.said
    assert late.state == "TIMEOUT"
    nothing_is_left(cluster)


@pytest.mark.nightly
def test_a_spare_of_the_job_takes_over() -> None:
    """A node loses power: the job goes on, and its ranks run on the spare. Then scancel ends it for good."""
    with build_cluster("slurm-spare", nodes=3) as box:
        job = Job(box, "spare", "-N3", words="--restarts 3 --spares 1")
        assert "note: the run is controlled from n1: if that node fails, Slurm ends job" in job.said
        box.host("n2").kill_power()
        wait_until(lambda: "attempt 2: restarting" in job.said, 150, lambda: f"the spare: {job.said}")
        assert "run-node-gone  n2" in job.said
        assert "recovery: n2 failed: n3 takes over" in job.said
        wait_until(lambda: count_ranks(job.said, "began") == 4, 60, lambda: f"its ranks: {job.said}")
        assert box.head.run(["scancel", job.number]).returncode == 0
        job.wait_for_end(60)
        assert "attempt 3" not in job.said
        nothing_is_left(box, 30)


def test_losing_a_node(cluster: Sandbox) -> None:
    """One job loses a node's slurmd, another a node's network: each names its node, and nothing stays anywhere."""
    first = Job(cluster, "without-slurmd", "-w", "n[1-2]", "-N2", words="--check none")
    second = Job(cluster, "without-network", "-w", "n[3-4]", "-N2", words="--check none")
    inject_fault(cluster, cluster.host("n2"), SlurmdKilled())
    inject_fault(cluster, cluster.host("n4"), LinkDown())
    for job, lost in ((first, "n2"), (second, "n4")):
        job.wait_for_end(120)
        assert f"run-node-gone {lost} seen: {lost} (1 rank) was lost" in job.said
        assert "Traceback" not in job.said
    nothing_is_left(cluster, 30)
