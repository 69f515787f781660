"""A training that Slurm ends, whichever way, has saved its last step, and continues from there."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deadlines import wait_until
from launching import PYTHON, build_sandbox

from aboard.sandbox import Sandbox
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.network.links import LinkDown

pytestmark = [pytest.mark.ground, pytest.mark.nightly, pytest.mark.xdist_group("torch_a")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "finetune"
FOLDER = "/shared/job"
# More steps than a test has time for; it saves only when it is told to stop.
SETS = (f"cluster.python={PYTHON}", "train.max_steps=100000", "train.save_steps=null", "train.eval_steps=null")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """Two nodes with Slurm, and the data and model of an example in the shared directory."""
    with build_sandbox("slurm-saving", nodes=2, slots=1, slurm=True) as box:
        for name in ("make_data.py", "make_model.py", "aboard.yaml"):
            text = (EXAMPLE / name).read_text("utf-8")
            assert box.head.run(["sh", "-c", f"mkdir -p {FOLDER}; cat > {FOLDER}/{name}"], input=text).returncode == 0
        for name in ("make_data.py", "make_model.py"):
            assert box.head.run([PYTHON, name], cwd=FOLDER, timeout=300).returncode == 0
        yield box


class Training:
    """A submitted training; it is some steps further when this is made."""

    def __init__(
        self, box: Sandbox, name: str, *options: str, saves: int | None = None, restarts: int | None = None
    ) -> None:
        self.box, self.out = box, f"{FOLDER}/{name}.out"
        sets = (*SETS, f"train.output_dir={FOLDER}/{name}", *([f"train.save_steps={saves}"] if saves else []))
        words = " ".join(f"--set {word}" for word in sets)
        words += "" if restarts is None else f" --restarts {restarts}"
        script = f"#!/bin/sh\n#SBATCH --no-kill\nexport OMP_NUM_THREADS=1\nexec aboard train --check none {words}\n"
        argv = ["sbatch", "--parsable", "-N2", "--gpus-per-node=1", "--open-mode=append", "-o", self.out, *options]
        done = box.head.run(argv, input=script, cwd=FOLDER)
        assert done.returncode == 0, done.stderr
        self.number = done.stdout.strip()
        self.wait_for(lambda: self.step >= 3, 120)

    @property
    def said(self) -> str:
        return self.box.head.run(["cat", self.out]).stdout

    @property
    def step(self) -> int:
        """The last step that its output shows."""
        return max(list_steps(self.said), default=0)

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        wait_until(condition, seconds, lambda: f"its progress: {self.said}")

    def wait_for_end(self, seconds: float) -> None:
        show = ["squeue", "--noheader", "--jobs", self.number]
        self.wait_for(lambda: not self.box.head.run(show).stdout, seconds)

    @property
    def saved_step(self) -> int:
        """The newest checkpoint in the output directory."""
        names = self.box.head.run(["ls", self.out.removesuffix(".out")]).stdout.split()
        return max((int(name[len("step-") :]) for name in names if re.fullmatch(r"step-\d+", name)), default=0)


def list_steps(said: str) -> list[int]:
    return [int(step.replace(",", "")) for step in re.findall(r"step ([\d,]+)/", said)]


def test_scancel_saves(cluster: Sandbox) -> None:
    """Within KillWait, which is five seconds here."""
    training = Training(cluster, "cancelled")
    cluster.head.run(["scancel", training.number]).check_returncode()
    training.wait_for_end(30)
    assert f"job {training.number} was cancelled" in training.said
    assert training.saved_step >= training.step


def test_a_time_limit_saves(cluster: Sandbox) -> None:
    """After the notice that the script asked for."""
    # Slurm may send it a minute earlier.
    training = Training(cluster, "late", "--time=5", "--signal=B:USR1@120")
    training.wait_for_end(240)
    assert "time limit" in training.said.splitlines()[-1]
    assert training.saved_step >= training.step


def test_a_requeued_training_resumes(cluster: Sandbox) -> None:
    """Another job takes its nodes; the second start continues where the first one saved."""
    training = Training(cluster, "requeued", "--exclusive", "--partition=preempt-requeue", "--requeue")
    other = cluster.head.run(["srun", "-N2", "--exclusive", "true"], timeout=120)
    assert other.returncode == 0, other.stderr
    saved = training.saved_step
    assert saved >= 3
    training.wait_for(lambda: training.step > saved + 2, 180)
    cluster.head.run(["scancel", training.number]).check_returncode()
    training.wait_for_end(30)
    assert training.saved_step > saved
    before, note, after = training.said.partition(f"Slurm requeued job {training.number}: the training continues")
    assert note, before
    assert min(list_steps(after)) > saved


def test_a_lost_node_leaves_the_last_checkpoint(cluster: Sandbox) -> None:
    """What was saved before is whole; the same job again continues from there."""
    training = Training(cluster, "lost", saves=5, restarts=0)
    training.wait_for(lambda: training.saved_step >= 5, 120)
    with inject_temporarily(cluster, cluster.host("n2"), LinkDown()):
        training.wait_for_end(150)
        assert "run-node-gone n2" in training.said
    saved = training.saved_step
    again = Training(cluster, "lost", saves=5)
    again.wait_for(lambda: again.step > saved, 180)
    cluster.head.run(["scancel", again.number]).check_returncode()
    again.wait_for_end(30)
