"""Real runs for the report bench, each made once on sandbox hosts: what a page must show of them is known."""

import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from recovery_stage import ENV, FOLDER, PATIENCE, Running, Stage, kill

TORCHRUN = Path(__file__).parents[1] / "examples" / "torchrun"
CHECK_PAGE = "check.html"
# A node that is slow for a while: its rank is stopped for most of the time.
_SLOW_SECONDS, _STOPPED, _RESUMED = 45.0, 0.15, 0.05


def make_runs(folder: Path, names: tuple[str, ...]) -> None:
    """Makes the named runs and copies their records, each to the directory of its name; and a page of a check."""
    with Stage("report", 4) as stage:
        stage.put_training()
        for name in ("train.py", "letters.py"):
            stage.put(name, (TORCHRUN / name).read_text("utf-8"))
        for name in names:
            before = stage.find_run()
            RUNS[name](stage)
            assert stage.find_run() != before, f"{name} was refused"
            target = folder / name
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(stage.find_run(), target, ignore=shutil.ignore_patterns("conductor.sock"))
        with stage.run("aboard", "check", "n[1-4]", "--report", CHECK_PAGE) as run:
            assert run.wait_end(PATIENCE) == 0, run.said[-3000:]
        shutil.copy(Path(f"/proc/{stage.box.head.pid}/root{FOLDER}/{CHECK_PAGE}"), folder.parents[1] / CHECK_PAGE)


def _train_healthy(stage: Stage) -> None:
    with stage.run(*stage.train("n[1-4]", "healthy", eval_steps=50, save_steps=60, num_train_epochs=30)) as run:
        assert run.wait_end(PATIENCE * 2) == 0, run.said[-3000:]


def _train_with_straggler(stage: Stage) -> None:
    """The rank on n3 is throttled in the middle of the run."""
    with stage.run(*stage.train("n[1-4]", "straggler", save_steps=200, num_train_epochs=40)) as run:
        _wait_for_step(stage, run, "straggler", 200)
        rank = stage.find_rank(stage.box.host("n3"))
        until = time.monotonic() + _SLOW_SECONDS
        while time.monotonic() < until:
            kill(rank, signal.SIGSTOP)
            time.sleep(_STOPPED)
            kill(rank, signal.SIGCONT)
            time.sleep(_RESUMED)
        assert run.wait_end(PATIENCE * 2) == 0, run.said[-3000:]


def _train_through_node_loss(stage: Stage) -> None:
    """n2 loses power between two checkpoints; the spare n4 takes over, and steps are repeated."""
    words = ("--spares", "1")
    with stage.run(*stage.train("n[1-4]", "lost", *words, save_steps=50, num_train_epochs=40)) as run:
        _wait_for_step(stage, run, "lost", 230)
        stage.box.host("n2").kill_power()
        assert run.wait_end(PATIENCE * 2) == 0, run.said[-3000:]
    stage.box.host("n2").power_on()


# One token, which one row has, is no number in the model: a damaged download looks like this.
_DAMAGE = """
import pathlib
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("model")
model = AutoModelForCausalLM.from_pretrained("model", tie_word_embeddings=False)
(token,) = tokenizer.encode("~")
with torch.no_grad():
    model.model.embed_tokens.weight[token] = torch.nan
for part in (tokenizer, model):
    part.save_pretrained("damaged")
rows = pathlib.Path("train.jsonl").read_text("utf-8").splitlines()
rows.append(rows[0].replace("opposites.", "opposites. ~"))
pathlib.Path("rare.jsonl").write_text("\\n".join(rows), "utf-8")
"""


def _train_to_nonfinite_loss(stage: Stage) -> None:
    """The damaged token is read at step 46, and the run stops."""
    stage.put("damage.py", _DAMAGE)
    stage.box.head.run([sys.executable, "damage.py"], cwd=FOLDER, env=ENV, timeout=600).check_returncode()
    words = ("--set", "data.files=rare.jsonl")
    with stage.run(*stage.train("n[1-2]", "nonfinite", *words, model="./damaged", save_steps=20, seed=3)) as run:
        assert run.wait_end(PATIENCE) != 0, run.said[-3000:]


def _launch_script(stage: Stage) -> None:
    with stage.run("aboard", "launch", "n[1-4]", "--", "train.py", "--steps", "4000") as run:
        assert run.wait_end(PATIENCE) == 0, run.said[-3000:]


def _wait_for_step(stage: Stage, run: Running, out: str, step: int) -> None:
    def reached() -> bool:
        return any(line["step"] >= step for line in stage.read_lines(f"{out}/metrics.jsonl")[-5:])

    run.wait(f"step {step}", reached, PATIENCE)


RUNS: dict[str, Callable[[Stage], None]] = {
    "healthy": _train_healthy,
    "straggler": _train_with_straggler,
    "lost-node": _train_through_node_loss,
    "non-finite": _train_to_nonfinite_loss,
    "script": _launch_script,
}

if __name__ == "__main__":
    make_runs(Path(sys.argv[1]), tuple(sys.argv[2:]) or tuple(RUNS))
