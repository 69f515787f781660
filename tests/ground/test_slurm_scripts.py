"""Batch scripts and srun commands of guides, pasted on a login node and inside a job of a real Slurm."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import PYTHON, Launches, build_sandbox

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("slurm-scripts")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "slurm"
OPTIONS = ("--set", f"cluster.python={PYTHON}", "--env", "OMP_NUM_THREADS=1")
# What a task of srun finds in its environment.
TASK = """
import os
names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_JOB_NUM_NODES")
with open(f"task-{os.environ['RANK']}", "w") as file:
    print(*(os.environ.get(name) for name in names), file=file)
"""


@pytest.fixture(scope="module")
def login() -> Iterator[Launches]:
    """Two nodes with two GPUs, and the example in the directory that all hosts share."""
    with build_sandbox("slurm-scripts", nodes=2, slots=2, slurm=True) as box:
        launches = Launches(box, folder="/shared/guides")
        launches.box.head.run(["rm", "/shared/guides/aboard.yaml"]).check_returncode()
        for path in sorted(EXAMPLE.iterdir()):
            launches.put(path.name, path.read_text("utf-8"))
        launches.put("task.py", TASK)
        yield launches


def test_the_loop_of_a_guide(login: Launches) -> None:
    """FMEngine's script, which starts torchrun on each node in a loop, trains on all four GPUs of the job."""
    said = _run(login, "sbatch", "fmengine.sh")
    assert "fmengine.sh starts 2 ranks on each of 2 nodes: train.py --output_dir output" in said
    assert "step 10 loss" in said
    assert "of world size 4" in said


def test_a_config_that_the_script_writes(login: Launches) -> None:
    """The options of the InfiniBand guide reach the script, and accelerate's settings reach every rank."""
    options = "--batch-size 1 --use-flash-attn --train-file jokes.jsonl"
    said = _run(login, "sbatch", "start_job_llama.sh", "--work-dir", "/shared/guides", "--train-options", options)
    assert "accelerate: FSDP, bf16" in said
    assert "of world size 4" in said


def test_pipeline_parallelism_is_refused(login: Launches) -> None:
    """The training script's own refusal is the reason that the run reports."""
    done = login.aboard("launch", *OPTIONS, "--", "PIPE_PARALLEL_SIZE=8", "sbatch", "fmengine.sh", timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "this script has data parallelism only" in done.stdout + done.stderr


def test_a_function_that_the_shell_exports(login: Launches) -> None:
    """`module` is a function on most clusters: it reaches the job, and what it loads reaches the ranks."""
    login.put("loaded.py", "import os\nprint('loaded', os.environ.get('LOADED'), flush=True)\n")
    login.put("modules.sh", "#!/bin/bash\n#SBATCH --nodes=2\nmodule load cuda\nsrun python3 loaded.py\n")
    shell = (
        f"module() {{ export LOADED=$2; }}; export -f module; aboard launch {' '.join(OPTIONS)} -- sbatch modules.sh"
    )
    done = login.box.head.run(["bash", "-c", shell], cwd=login.folder, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "loaded cuda" in done.stdout


def test_tasks_that_are_ranks(login: Launches) -> None:
    """`srun python` inside a job: each rank finds its number in the variables of a task."""
    words = ["salloc", "--quiet", "--no-kill", "-N2", "--gpus-per-node=2", "aboard", "launch", *OPTIONS, "--"]
    words += ["srun", "--ntasks-per-node=2", "python", "task.py"]
    done = login.box.head.run(words, cwd=login.folder, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    written = login.box.head.run(["sh", "-c", "cat task-?"], cwd=login.folder).stdout.splitlines()
    assert written == ["0 0 0 4 2", "1 1 0 4 2", "2 0 1 4 2", "3 1 1 4 2"]


def test_the_way_out_of_a_refusal(login: Launches) -> None:
    """A script with a command that Aboard doesn't run is refused; the fix, pasted, lets the script do the rest."""
    login.put(
        "copies.sh", "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=2 --no-kill\ncp task.py own.py\nsrun python own.py\n"
    )
    refused = login.aboard("launch", "--", "sbatch", "copies.sh")
    assert refused.returncode == 3
    assert "copies.sh, line 3" in refused.stderr
    fix = refused.stderr.partition("let the script start Aboard: ")[2].splitlines()[0]
    pasted = f"rm -f task-?; {fix}".replace("sbatch ", "sbatch --wait ")
    done = login.box.head.run(["sh", "-c", pasted], cwd=login.folder, timeout=120)
    output = login.box.head.run(["sh", "-c", "cat slurm-*.out task-?"], cwd=login.folder).stdout
    assert done.returncode == 0, done.stderr + output
    assert output.splitlines()[-4:] == ["0 0 0 4 2", "1 1 0 4 2", "2 0 1 4 2", "3 1 1 4 2"]


def _run(login: Launches, *words: str) -> str:
    """The output of a launch that succeeds."""
    done = login.aboard("launch", *OPTIONS, "--", *words, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
