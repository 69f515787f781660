"""The same runs by srun as over ssh: in salloc's shell, in a batch script, and submitted from the login node."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import PYTHON, build_sandbox

from aboard.sandbox import Sandbox

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("slurm")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune"
FOLDER = "/shared/job"
SECONDS = 600
STEPS = 2
# Threads that spin for each other take minutes where several tests share two cores.
ENV = {"OMP_NUM_THREADS": "1"}
# Two nodes with two GPUs, two with one.
UNEVEN = ("--nodes=4", "--ntasks-per-node=1", "--cpus-per-task=2", "--gpus=6")
OVER_SSH = ("--hostfile", "hosts")
HOSTS = "n1 slots=2\nn2 slots=2\nn3 slots=1\nn4 slots=1\n"
# Three ranks are as uneven as six, and train in half the time.
FEW = ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2", "--gpus=3")
FEW_OVER_SSH = ("--hostfile", "few-hosts")
FEW_HOSTS = "n1 slots=2\nn2 slots=1\n"
REQUEST = "cluster: {slurm: {nodes: 2, extra: ['--gpus=3', '--cpus-per-task=2']}}\n"
# What a rank sees of its node and of Slurm.
SIGHT = """
import json, os
slurm = sorted(name for name in os.environ if name.startswith(("SLURM", "PMI")))
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "SLURMD_NODENAME", "SLURM_JOB_NUM_NODES")
seen = {name: os.environ.get(name) for name in names}
print(json.dumps({**seen, "cores": len(os.sched_getaffinity(0)), "slurm": slurm}))
"""
# Lines of all lengths, and every byte; srun would cut, merge or mistake them.
TALK = """
import os, random, sys
dice = random.Random(int(os.environ["RANK"]))
for _ in range(60):
    sys.stdout.buffer.write(bytes(dice.choices(range(256), k=dice.choice((10, 100, 1000, 20_000)))) + b"\\n")
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """Four nodes with Slurm, and an example in the shared directory."""
    with build_sandbox("slurm-runs", nodes=4, slots=2, slurm=True) as box:
        put(box, "talk.py", TALK)
        put(box, "sight.py", SIGHT)
        put(box, "hosts", HOSTS)
        put(box, "few-hosts", FEW_HOSTS)
        put(box, "request.yaml", REQUEST)
        yield box


@pytest.fixture(scope="module")
def example(cluster: Sandbox) -> Sandbox:
    """The cluster with the data and model of the example."""
    for name in ("make_data.py", "make_model.py", "aboard.yaml"):
        put(cluster, name, (EXAMPLE / name).read_text("utf-8"))
    for name in ("make_data.py", "make_model.py"):
        run(cluster, PYTHON, name)
    return cluster


def test_every_rank_sees_all_cores_and_gpus_of_the_job(cluster: Sandbox) -> None:
    """Also if the job asked per task, and for uneven numbers; no rank takes the agent's task for its own."""
    per_task = ("--nodes=2", "--ntasks=4", "--cpus-per-task=1", "--gpus-per-task=1")
    for job, gpus in ((UNEVEN, ["0,1"] * 4 + ["0"] * 2), (per_task, ["0,1"] * 4)):
        said = run(cluster, "salloc", "--quiet", *job, *launch("sight.py"))
        run_id = said.partition("run ")[2].partition(":")[0]
        lines = run(cluster, "aboard", "logs", run_id, "--raw", "--stream", "stdout").splitlines()
        seen = sorted(map(json.loads, lines), key=lambda each: int(each["RANK"]))
        assert [each["CUDA_VISIBLE_DEVICES"] for each in seen] == gpus
        assert {each["cores"] for each in seen} == {2}
        assert {each["WORLD_SIZE"] for each in seen} == {str(len(gpus))}
        assert [each["LOCAL_RANK"] for each in seen] == (["0", "1"] * 2 + ["0"] * 2)[: len(gpus)]
        for each in seen:
            assert not {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_ID"}.intersection(each["slurm"])
            assert "SLURM_JOB_ID" in each["slurm"]


@pytest.mark.nightly
def test_output_by_srun_is_that_over_ssh(cluster: Sandbox) -> None:
    """Every byte of every rank."""
    over_ssh = run(cluster, *launch("talk.py", *OVER_SSH))
    in_job = run(cluster, "salloc", "--quiet", *UNEVEN, *launch("talk.py"))
    assert hash_output(cluster, in_job) == hash_output(cluster, over_ssh)


# Two trainings each; what a submitted training does in its job is also that of test_slurm_saving.py.
@pytest.mark.nightly
@pytest.mark.parametrize("way", ["login", "salloc", "sbatch"])
def test_the_losses_by_srun_are_those_over_ssh(example: Sandbox, way: str) -> None:
    """Step by step, with uneven numbers of ranks on two nodes."""
    if not list_losses(example, "ssh"):
        run(example, *train("ssh", *FEW_OVER_SSH))
    if way == "login":
        run(example, *train(way, "aboard.yaml", "request.yaml"))
    elif way == "salloc":
        run(example, "salloc", "--quiet", *FEW, *train(way))
    else:
        lines = f"#!/bin/bash\n#SBATCH {' '.join(FEW)} --output={FOLDER}/train.out\n"
        quoted = " ".join(f"'{word}'" for word in train(way))
        put(example, "train.sh", f"{lines}{quoted}\n")
        run(example, "sbatch", "--wait", "train.sh")
    assert list_losses(example, way) == pytest.approx(list_losses(example, "ssh"), rel=1e-6)
    assert len(list_losses(example, way)) == STEPS


def launch(script: str, *words: str) -> tuple[str, ...]:
    return ("aboard", "launch", "--set", f"cluster.python={PYTHON}", *words, "--", script)


def train(out: str, *words: str) -> tuple[str, ...]:
    sets = (
        f"cluster.python={PYTHON}",
        f"train.output_dir={FOLDER}/{out}",
        f"train.max_steps={STEPS}",
        "train.eval_steps=null",
        "train.global_batch_size=12",
    )
    return ("aboard", "train", *(word for each in sets for word in ("--set", each)), *words)


def put(box: Sandbox, name: str, text: str) -> None:
    script = f"mkdir -p {FOLDER} && cat > {FOLDER}/{name}"
    assert box.head.run(["sh", "-c", script], input=text).returncode == 0


def run(box: Sandbox, *argv: str) -> str:
    done = box.head.run(argv, cwd=FOLDER, env=ENV, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def hash_output(box: Sandbox, said: str) -> list[str]:
    """A hash of what each rank wrote to its stdout."""
    run_id = said.partition("run ")[2].partition(":")[0]
    show = f"aboard logs {run_id} --raw --stream stdout --lines all --rank"
    return [run(box, "sh", "-c", f"{show} {rank} | sha256sum") for rank in range(6)]


def list_losses(box: Sandbox, out: str) -> list[float]:
    done = box.head.run(["cat", f"{FOLDER}/{out}/metrics.jsonl"])
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [row["loss"] for row in rows if "loss" in row]
