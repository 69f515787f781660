"""Inside a real Slurm job: its components, jobs side by side on the same nodes, and what a requeued job does."""

from collections.abc import Iterator

import pytest
from deadlines import wait_until
from launching import build_sandbox

from aboard.sandbox import Sandbox

# On one worker: what the fixture sets up is dear.
pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("slurm-allocation")]

# Rank 0 takes the port that it was given, and says so; nobody leaves before the other job has one too.
MEET = """\
import os, pathlib, socket, time
mine = pathlib.Path("/shared/met", os.environ["TASK"])
if os.environ["RANK"] == "0":
    server = socket.create_server(("", int(os.environ["MASTER_PORT"])))
    mine.write_text(os.environ["MASTER_PORT"] + " " + os.environ["TORCHELASTIC_RUN_ID"])
while len(list(mine.parent.iterdir())) < 2:
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """Three nodes with Slurm that tests share: leave every node idle."""
    with build_sandbox("allocation", nodes=3, slurm=True) as made:
        # The nodes themselves have no `aboard`.
        made.head.run(["mkdir", "/shared/met"]).check_returncode()
        made.head.run(["cp", "/usr/local/bin/aboard", "/shared/aboard"]).check_returncode()
        made.head.run(["tee", "/shared/meet.py"], input=MEET).check_returncode()
        yield made


def test_a_heterogeneous_job(cluster: Sandbox) -> None:
    """Nodes of all components are checked; ranks run where the job has GPUs."""
    words = ["salloc", "-N1", "--gpus-per-node=2", ":", "-N2", "sh", "-c"]
    script = "aboard check --only reach && aboard launch --check none --no-python -- true"
    ran = cluster.head.run([*words, script], cwd="/shared")
    assert "done: 3 of 3 nodes reached" in ran.stdout, ran.stdout + ran.stderr
    assert "note: checked the nodes of Slurm job" in ran.stdout
    assert "has no GPUs on n[2-3]: no ranks run there" in ran.stdout
    assert "done: finished: 2 ranks" in ran.stdout, ran.stdout


def test_array_tasks_on_the_same_nodes(cluster: Sandbox) -> None:
    """Two at the same time never share a port or a run."""
    script = "#!/bin/sh\nexec /shared/aboard launch --check none --env TASK=$SLURM_ARRAY_TASK_ID -- meet.py\n"
    options = ["-N2", "--gpus-per-node=1", "--nodelist=n[1-2]", "--array=0-1", "--output=/shared/array-%a.out"]
    ran = cluster.head.run(["sbatch", "--wait", *options], input=script, cwd="/shared")
    assert ran.returncode == 0, cluster.head.run(["sh", "-c", "cat /shared/array-*.out"]).stdout
    met = cluster.head.run(["sh", "-c", "cat /shared/met/0; echo; cat /shared/met/1"]).stdout.split()
    assert len(set(met)) == 4


def test_a_requeued_job_refuses_to_start_over(cluster: Sandbox) -> None:
    """The second start names the run of the first."""
    first, second = requeue(cluster, "/shared/aboard launch --check none --no-python -- sleep 600", "started 2/2")
    run = first.partition("run ")[2].partition(":")[0]
    assert "error [slurm-requeued]" in second, first
    assert f"and run {run} had started before: the same command would start over" in second


def test_copies_that_srun_started_are_refused(cluster: Sandbox) -> None:
    """Each of them."""
    ran = cluster.head.run(["srun", "-N2", "/shared/aboard", "launch", "--no-python", "--", "true"])
    assert ran.returncode == 3
    assert ran.stderr.count("srun started 2 copies of aboard; start only one") == 2


def read(cluster: Sandbox, path: str) -> str:
    return cluster.head.run(["cat", path]).stdout


def is_queue_empty(cluster: Sandbox) -> bool:
    """A squeue that slurmctld does not answer in time prints nothing, too."""
    asked = cluster.head.run(["squeue", "--noheader"])
    return asked.returncode == 0 and not asked.stdout


def requeue(cluster: Sandbox, command: str, until: str) -> tuple[str, str]:
    """The output of a job on two nodes that is requeued once it said `until`: of its first and of its second start."""
    script = f"#!/bin/bash\necho begin $SLURM_RESTART_COUNT\n{command}\n"
    options = ["-N2", "--nodelist=n[1-2]", "--cpus-per-task=2", "--output=/shared/%j.out", "--open-mode=append"]
    # Threads that spin for each other take minutes where several tests share two cores.
    job = cluster.head.run(
        ["sbatch", "--parsable", *options], input=script, env={"OMP_NUM_THREADS": "1"}
    ).stdout.strip()
    out = f"/shared/{job}.out"
    wait_until(lambda: until in read(cluster, out), 120)
    cluster.head.run(["scontrol", "requeue", job]).check_returncode()
    wait_until(lambda: "(BeginTime)" in cluster.head.run(["squeue", "-hj", job, "-o", "%R"]).stdout, 60)
    # Slurm would wait two minutes.
    cluster.head.run(["scontrol", "update", f"jobid={job}", "starttime=now"]).check_returncode()
    wait_until(lambda: is_queue_empty(cluster), 300)
    first, _, second = read(cluster, out).partition("begin 1\n")
    return first, second
