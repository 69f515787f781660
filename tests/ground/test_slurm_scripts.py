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
    assert "captured srun on n[1-2] (fmengine.sh line" in said
    assert "step 10 loss" in said
    assert "of world size 4" in said


@pytest.mark.nightly
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


# Ranks need no torch.
RANK = """
import os, sys, time
names = ("RANK", "WORLD_SIZE", "LEARNING", "SLURM_PROCID", "ABOARD_CAPTURE")
with open(f"/shared/guides/ran-{os.environ['RANK']}", "w") as file:
    print("rank", *(os.environ.get(name, "-") for name in names), *sys.argv[1:], file=file)
print("printed by rank", os.environ["RANK"], flush=True)
while "wait" in sys.argv:
    time.sleep(0.1)
sys.exit(int(sys.argv[-1]) if sys.argv[-1].isdecimal() and os.environ["RANK"] == "1" else 0)
"""
PREPARES = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:2
set -e
[[ -f rank.py ]] && rm -f own.py && cp rank.py own.py
export LEARNING=$(printf '0.%d' $((1 + 1)))
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
echo "first ${hosts[0]}, $(srun hostname | sort | tr '\\n' ' ')of $SLURM_NTASKS tasks"
srun -N1 -n1 touch prepared
srun mkdir -p made
srun torchrun --nnodes 2 --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint ${hosts[0]}:29417 own.py a
echo "after $?, $(ls -d prepared made | tr '\\n' ' ')"
"""
TASKS = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:2
export LEARNING=0.3
srun bash -c 'echo "task $SLURM_PROCID of $SLURM_NTASKS on $(hostname)"; cd /shared/guides &&
    torchrun --nnodes $SLURM_NNODES --node_rank $SLURM_NODEID --nproc_per_node 2 rank.py b' | tee train.log
echo "after $?"
"""
# sbatch takes a script in any language.
IN_PYTHON = """#!/usr/bin/env python3
#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:2
import os, subprocess, sys
words = ["<PAD>", sys.argv[1]]
os.environ["LEARNING"] = "0.4"
print("first", subprocess.check_output(["srun", "hostname"], text=True).split(), flush=True)
command = ["srun", "torchrun", "--nnodes", os.environ["SLURM_NNODES"], "--nproc_per_node", "2", "rank.py"]
print("after", subprocess.call([*command, *words]))
"""
FORGIVING = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:2
srun torchrun --nnodes 2 --nproc_per_node 1 rank.py 7 || true
echo "over"
exit 0
"""


def test_a_script_that_prepares(login: Launches) -> None:
    """Its lines run once, on the batch host, with Slurm's commands; ranks have what it has set, and nothing of ours."""
    login.put("rank.py", RANK)
    login.put("prepares.sh", PREPARES)
    said = _run(login, "sbatch", "prepares.sh")
    assert "first n1, n1 n2 of 2 tasks" in said
    assert _list_ranks(login) == [f"rank {rank} 4 0.2 - - a" for rank in range(4)]
    assert "after 0, made prepared" in said


def test_tasks_that_call_a_launcher(login: Launches) -> None:
    """Each node's task runs its shell with its own numbers; the launchers become one run, whose lines srun prints."""
    login.put("rank.py", RANK)
    login.put("tasks.sh", TASKS)
    said = _run(login, "sbatch", "tasks.sh")
    for task, node in enumerate(("n1", "n2")):
        assert f"[script on {node}] task {task} of 2 on {node}" in said
    assert _list_ranks(login) == [f"rank {rank} 4 0.3 - - b" for rank in range(4)]
    assert "after 0" in said
    written = login.box.head.run(["cat", "train.log"], cwd=login.folder).stdout.splitlines()
    expected = [f"task {task} of 2 on n{task + 1}" for task in range(2)]
    assert sorted(written) == [*(f"printed by rank {rank}" for rank in range(4)), *expected]
    assert "[script on n1] printed" not in said, said


def test_a_script_in_another_language(login: Launches) -> None:
    """Its own interpreter runs it, and the srun of ranks that it starts is replaced."""
    login.put("rank.py", RANK)
    login.put("job.py", IN_PYTHON)
    said = _run(login, "sbatch", "job.py", "e")
    assert "[script on n1] first ['n1', 'n2']" in said or "[script on n1] first ['n2', 'n1']" in said
    assert _list_ranks(login) == [f"rank {rank} 4 0.4 - - <PAD> e" for rank in range(4)]
    assert "after 0" in said


def test_a_failed_run_is_not_forgiven(login: Launches) -> None:
    """The job's exit code is the failed run's, though the script goes on and ends with 0."""
    login.put("rank.py", RANK)
    login.put("forgiving.sh", FORGIVING)
    done = login.aboard("launch", *OPTIONS, "--", "sbatch", "forgiving.sh", timeout=300)
    assert done.returncode == 7, done.stdout + done.stderr
    assert "[script on n1] over" in done.stdout


def test_ranks_of_srun_in_a_script(login: Launches) -> None:
    """Two tasks on each node, as the script's own lines ask for; none has variables of the batch host's capture."""
    login.put("rank.py", RANK)
    login.put("ranks.sh", "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=2\nexport LEARNING=1\nsrun python rank.py c\n")
    _run(login, "sbatch", "ranks.sh")
    assert _list_ranks(login) == [f"rank {rank} 4 1 {rank} - c" for rank in range(4)]


def test_an_srun_of_a_shell(login: Launches) -> None:
    """Typed inside a job: its tasks have this shell's variables, and the launcher that they call is replaced."""
    login.put("rank.py", RANK)
    words = ["env", "MARK=2", "salloc", "--quiet", "--no-kill", "-N2", "aboard", "launch", *OPTIONS]
    words += ["--", "srun", "bash", "-c", "export LEARNING=$MARK; torchrun --nnodes 2 --nproc_per_node 1 rank.py d"]
    done = login.box.head.run(words, cwd=login.folder, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert _list_ranks(login) == [f"rank {rank} 2 2 - - d" for rank in range(2)]


def test_two_steps_at_the_same_time(login: Launches) -> None:
    """They would share ports and devices; the srun of a program that is no rank is none of them."""
    login.put("rank.py", RANK)
    both = "srun torchrun --nproc_per_node 1 rank.py wait &\n" * 2
    login.put("both.sh", f"#!/bin/bash\n#SBATCH -N2\nsrun sleep 600 &\n{both}wait\n")
    done = login.aboard("launch", *OPTIONS, "--", "sbatch", "both.sh", timeout=300)
    assert done.returncode != 0
    assert "capture-parallel" in done.stdout, done.stdout + done.stderr


def test_a_script_that_calls_torchrun_itself(login: Launches) -> None:
    """In a job, as over ssh: it prepares on each node, and its launchers become one run."""
    login.put("rank.py", RANK)
    login.put("own.sh", "export LEARNING=3\ntorchrun --nnodes $NNODES --nproc_per_node 1 rank.py e\n")
    words = ["salloc", "--quiet", "--no-kill", "-N2", "aboard", "launch", *OPTIONS, "--", "bash", "own.sh"]
    done = login.box.head.run(words, cwd=login.folder, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "captured torchrun on n[1-2] (own.sh line 2)" in done.stdout
    assert _list_ranks(login) == [f"rank {rank} 2 3 - - e" for rank in range(2)]


def test_a_job_without_ranks_is_marked(login: Launches) -> None:
    """A login node without the record must not call it finished: it knows only exit code 0. It runs no rank itself."""
    login.put("driver.sh", "#!/bin/bash\n#SBATCH -N1 --comment=mine\necho driving\n")
    assert "not monitored: the script on n1 ended" in _run(login, "sbatch", "driver.sh")
    marked = login.box.head.run(["squeue", "--states=all", "--noheader", "--format=%k"]).stdout
    assert "mine not-monitored aboard:" in marked
    refused = login.aboard("launch", "--", "true")
    assert refused.returncode == 2
    assert "host-login-node" in refused.stdout + refused.stderr


def test_an_srun_that_is_not_ours(login: Launches) -> None:
    """Called by its path, it is ended and named: its ranks would run without Aboard."""
    login.put("waits.py", "import time\ntime.sleep(600)\n")
    login.put("path.sh", "#!/bin/bash\n#SBATCH -N2\n/usr/bin/srun python3 waits.py\n")
    done = login.aboard("launch", *OPTIONS, "--", "sbatch", "path.sh", timeout=300)
    assert done.returncode != 0
    assert "capture-escaped" in done.stdout, done.stdout + done.stderr
    assert "call it as srun" in done.stdout


def _list_ranks(login: Launches) -> list[str]:
    """What each rank wrote; the next test finds nothing."""
    script = "cat ran-*; rm ran-*"
    return login.box.head.run(["sh", "-c", script], cwd=login.folder).stdout.splitlines()


def _run(login: Launches, *words: str) -> str:
    """The output of a launch that succeeds."""
    done = login.aboard("launch", *OPTIONS, "--", *words, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
