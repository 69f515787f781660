"""Trainings and the examples in containers, on four hosts over ssh and in a Slurm job: the same losses as outside.

Hosts share /shared, but each has its own homes.
"""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import PYTHON, Launches, build_sandbox

from aboard.sandbox import Sandbox
from aboard.sandbox.host_setup.system_files import CREW_HOME

# CI trains outside of containers, and starts torch in both runtimes (test_sandbox_containers.py).
pytestmark = [pytest.mark.ground, pytest.mark.nightly, pytest.mark.xdist_group("torch_b")]

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDER = "/shared/job"
# DeepSpeed's first start compiles an extension: a minute on two quiet cores, several on busy ones.
SECONDS = 600
STEPS = 2
# Threads that spin for each other take minutes where several tests share two cores.
ENV = {"OMP_NUM_THREADS": "1"}
EXAMPLE_ENV = (
    *("HF_HUB_OFFLINE=1", "DS_ACCELERATOR=cpu"),
    *("TORCH_EXTENSIONS_DIR=/shared/torch_extensions", "OMP_NUM_THREADS=1"),
)
OUTSIDE = ("--set", f"cluster.python={PYTHON}")
IMAGES = {"apptainer": "/opt/images/train.sif", "podman": "train"}
HOSTS = "".join(f"n{number} slots=1\n" for number in range(1, 5))
JOB = "cluster: {slurm: {nodes: 4, extra: ['--cpus-per-task=2']}}\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """Four nodes with containers and Slurm; data and model of an example in the shared directory."""
    with build_sandbox("container-training", nodes=4, slots=1, slurm=True, containers=True) as box:
        put(box, "../hostfile", HOSTS)
        put(box, "job.yaml", JOB)
        for name in ("make_data.py", "make_model.py", "aboard.yaml"):
            put(box, name, (EXAMPLES / "finetune" / name).read_text("utf-8"))
        for name in ("make_data.py", "make_model.py"):
            run(box, PYTHON, name)
        yield box


@pytest.mark.parametrize("runtime", IMAGES)
def test_the_losses_of_a_training_are_those_outside(cluster: Sandbox, runtime: str) -> None:
    """Step by step; checkpoints belong to the user, and `aboard status` has the same figures."""
    expected = train_outside(cluster, 4)
    run(cluster, *train(runtime, *inside(runtime), "n[1-4]"))
    assert list_losses(cluster, runtime) == pytest.approx(expected, rel=1e-6)
    assert list_owners(cluster, runtime) == {"crew"}
    assert read_status(cluster) == ["finished", "4", str(STEPS)]


def test_the_losses_in_a_slurm_job_are_those_outside(cluster: Sandbox) -> None:
    """Submitted from the login node by `cluster.slurm`: sbatch, srun, then Apptainer."""
    expected = train_outside(cluster, 4)
    run(cluster, *train("slurm", "aboard.yaml", "job.yaml", *inside("apptainer")))
    assert list_losses(cluster, "slurm") == pytest.approx(expected, rel=1e-6)
    assert list_owners(cluster, "slurm") == {"crew"}


@pytest.mark.parametrize("runtime", IMAGES)
def test_a_training_goes_on_inside_and_outside(cluster: Sandbox, runtime: str) -> None:
    """A checkpoint from inside is resumed outside and the other way round, with the losses of one long run."""
    # The learning rate must not depend on the number of steps, which grows.
    kept = ("n[1-4]", "--set", "train.lr_scheduler_type=constant", "--set", "train.warmup_ratio=0")
    if not list_losses(cluster, "long"):
        run(cluster, *train("long", *OUTSIDE, *kept, "--set", "train.max_steps=3"))
    for steps, place in enumerate((inside(runtime), OUTSIDE, inside(runtime)), 1):
        run(cluster, *train(f"{runtime}-resumed", *place, *kept, "--set", f"train.max_steps={steps}"))
    assert list_losses(cluster, f"{runtime}-resumed") == pytest.approx(list_losses(cluster, "long"), rel=1e-6)


@pytest.mark.parametrize("runtime", IMAGES)
def test_without_a_shared_disk_inputs_and_checkpoints_are_in_homes(cluster: Sandbox, runtime: str) -> None:
    """Files are sent to each node's home, which containers see at its own path."""
    home = f"{CREW_HOME}/{runtime}"
    cluster.head.run(["cp", "-r", FOLDER, home]).check_returncode()
    words = train(f"{home}/out", *inside(runtime), "n[1-4]")
    done = cluster.head.run(words, cwd=home, env=ENV, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sent to 4 nodes" in done.stdout
    for node in cluster.nodes:
        saved = node.run(["sh", "-c", f"ls {home}/out/step-00000{STEPS}"]).stdout
        assert "safetensors" in saved, (node.name, saved)


@pytest.mark.parametrize("runtime", IMAGES)
@pytest.mark.parametrize("example", ["torchrun", "accelerate-fsdp", "deepspeed-zero2", "hf-trainer"])
def test_the_examples_print_the_same_losses(cluster: Sandbox, example: str, runtime: str) -> None:
    """Each by the line of its README on four nodes; all ranks end well and nothing is left."""
    launches = Launches(cluster, folder=f"/shared/{example}")
    for file in (EXAMPLES / example).iterdir():
        text = file.read_text()
        launches.put(file.name, re.sub("(num_machines|num_processes): [24]", r"\1: 4", text))
    (line,) = re.findall(r"^    aboard launch (.*)$", (EXAMPLES / example / "README.md").read_text(), re.MULTILINE)
    words = shlex.split(line.replace("--nnodes 2 --nproc-per-node 2", "--nnodes 4 --nproc-per-node 1"))
    losses = []
    for place in (OUTSIDE, inside(runtime)):
        ran = launches.launch(*place, *words, env=EXAMPLE_ENV, timeout=SECONDS)
        assert ran.code == 0, ran.said
        assert launches.orphans(ran.run) == {}
        raw = launches.aboard("logs", ran.run, "--no-fold", "--stream", "stdout", "-n", "all", "--rank", "0").stdout
        losses.append(re.findall(r"(?:step \d+|train) loss ([\d.]+)", raw))
        assert re.search("done: rank 0 of world size 4", raw), raw
    assert losses[0] == losses[1]
    assert losses[0]


def inside(runtime: str) -> tuple[str, ...]:
    image = f"cluster.container.image={IMAGES[runtime]}"
    return ("--set", f"cluster.container.runtime={runtime}", "--set", image)


def train_outside(box: Sandbox, nodes: int) -> list[float]:
    """The losses of the same training without a container."""
    out = f"outside-{nodes}"
    if not list_losses(box, out):
        run(box, *train(out, *OUTSIDE, f"n[1-{nodes}]"))
    losses = list_losses(box, out)
    assert len(losses) == STEPS
    return losses


def train(out: str, *words: str) -> tuple[str, ...]:
    path = out if out.startswith("/") else f"{FOLDER}/{out}"
    sets = (f"train.output_dir={path}", f"train.max_steps={STEPS}", "train.eval_steps=null")
    return ("aboard", "train", *(word for each in sets for word in ("--set", each)), *words)


def put(box: Sandbox, name: str, text: str) -> None:
    script = f"mkdir -p {FOLDER} && cat > {FOLDER}/{name}"
    assert box.head.run(["sh", "-c", script], input=text).returncode == 0


def run(box: Sandbox, *argv: str) -> str:
    done = box.head.run(argv, cwd=FOLDER, env=ENV, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def list_losses(box: Sandbox, out: str) -> list[float]:
    """The training losses, by step."""
    done = box.head.run(["cat", f"{FOLDER}/{out}/metrics.jsonl"])
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


def list_owners(box: Sandbox, out: str) -> set[str]:
    """Of everything that was written."""
    return set(run(box, "find", f"{FOLDER}/{out}", "-printf", "%u\\n").split())


def read_status(box: Sandbox) -> list[str]:
    """State, ranks and step of the newest run."""
    columns = run(box, "aboard", "status").splitlines()[1].split("\t")
    return [columns[1], *columns[3:5]]
