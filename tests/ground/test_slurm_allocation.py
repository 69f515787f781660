"""Inside a real Slurm job: the nodes, GPUs and cores that ranks get, jobs side by side, and a requeued job."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from deadlines import wait_until
from launching import build_sandbox

from aboard.sandbox import Sandbox

# On one worker: what the fixture sets up is dear.
pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("slurm-allocation")]

# Each rank writes down what it was given.
SHOW = """\
import json, os, pathlib
names = ("RANK", "CUDA_VISIBLE_DEVICES", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID")
given = {"node": os.uname().nodename, "cores": len(os.sched_getaffinity(0)), **{n: os.environ.get(n) for n in names}}
pathlib.Path("/shared/given", os.environ["RANK"]).write_text(json.dumps(given) + "\\n")
"""
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
        made.head.run(["mkdir", "/shared/given", "/shared/met"]).check_returncode()
        made.head.run(["cp", "/usr/local/bin/aboard", "/shared/aboard"]).check_returncode()
        for name, text in (("show.py", SHOW), ("meet.py", MEET)):
            made.head.run(["tee", f"/shared/{name}"], input=text).check_returncode()
        yield made


def test_ranks_get_the_gpus_and_cores_of_the_job(cluster: Sandbox) -> None:
    """One rank for each GPU, of which nodes have different numbers; each sees all cores of its node, and no step."""
    launch = ["aboard", "launch", "--check", "none", "--", "show.py"]
    cores = int(cluster.head.run(["sinfo", "-ho", "%c"]).stdout.split()[0])
    options = ["-N3", "-n3", f"--cpus-per-task={cores}", "--gpus=5"]
    ran = cluster.head.run(["salloc", *options, *launch], cwd="/shared")
    assert "done: finished: 5 ranks" in ran.stdout, ran.stdout + ran.stderr
    ranks = read_given(cluster)
    gpus = {rank["node"]: rank["CUDA_VISIBLE_DEVICES"] for rank in ranks}
    assert sorted(gpus.values()) == ["0", "0,1", "0,1"]
    assert [rank["node"] for rank in ranks] == [node for node in sorted(gpus) for _ in gpus[node].split(",")]
    assert {rank["cores"] for rank in ranks} == {cores}
    assert {rank[name] for rank in ranks for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID")} == {None}


def test_a_heterogeneous_job(cluster: Sandbox) -> None:
    """Nodes of all components are checked; ranks run where the job has GPUs."""
    words = ["salloc", "-N1", "--gpus-per-node=2", ":", "-N2", "sh", "-c"]
    script = "aboard check --only reach && aboard launch --check none -- show.py"
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
    script = "#!/bin/sh\n#SBATCH --open-mode=append\nexec /shared/aboard launch --check none --no-python -- sleep 600\n"
    options = ["-N2", "--nodelist=n[1-2]", "--output=/shared/requeue.out"]
    job = cluster.head.run(["sbatch", "--parsable", *options], input=script).stdout.strip()
    wait_until(lambda: "started 2/2" in read(cluster, "/shared/requeue.out"), 20)
    cluster.head.run(["scontrol", "requeue", job]).check_returncode()
    wait_until(lambda: "(BeginTime)" in cluster.head.run(["squeue", "-hj", job, "-o", "%R"]).stdout, 20)
    # Slurm would wait two minutes.
    cluster.head.run(["scontrol", "update", f"jobid={job}", "starttime=now"]).check_returncode()
    wait_until(lambda: not cluster.head.run(["squeue", "--noheader"]).stdout, 40)
    first, _, second = read(cluster, "/shared/requeue.out").partition("error [slurm-requeued]")
    run = first.partition("run ")[2].partition(":")[0]
    assert f"Slurm requeued job {job}, and run {run} had started before" in second


def test_copies_that_srun_started_are_refused(cluster: Sandbox) -> None:
    """Each of them."""
    ran = cluster.head.run(["srun", "-N2", "/shared/aboard", "launch", "--", "show.py"], cwd="/shared")
    assert ran.returncode == 3
    assert ran.stderr.count("srun started 2 copies of aboard; start only one") == 2


def read(cluster: Sandbox, path: str) -> str:
    return cluster.head.run(["cat", path]).stdout


def read_given(cluster: Sandbox) -> list[dict[str, Any]]:
    """What the ranks wrote down, in their order."""
    lines = cluster.head.run(["sh", "-c", "cat /shared/given/*"]).stdout.splitlines()
    return sorted(map(json.loads, lines), key=lambda rank: int(rank["RANK"]))
