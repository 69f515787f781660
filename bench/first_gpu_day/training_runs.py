"""examples/finetune in all layouts beside the CPU's losses; a save that a kill interrupts, and a resume elsewhere."""

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from time import time
from typing import Any

from aboard.diagnoses.untrusted import Untrusted
from first_gpu_day.day_run import DayRun, Figure, Outcome
from first_gpu_day.gpu_day import Command, GpuDay, format_logs, read_number

# Of float32 on GPUs and CPUs, whose sums have another order.
LIMIT = 1e-3
_LAYOUTS = {"one": ("none", "full"), "two": ("none", "full", "hybrid")}


def finetune(day: GpuDay, where: str, layout: str) -> Outcome:
    """The losses of each step, beside those that the CPU had."""
    name = f"finetune-{where}-{layout}" if layout else "finetune-cpu"
    done = train_example(day, name, where, {"sharding": layout} if layout else {"device": "cpu"})
    losses = read_losses(day, name)
    figures: dict[str, Figure] = {f"loss {step}": loss for step, loss in losses.items()}
    texts = {"aboard": done.output, "output": format_logs(day.read_logs(name))}
    if done.code != 0 or len(losses) < day.sizes.finetune_steps:
        return explain_failure(day, name, done, texts)
    if not layout:
        return Outcome(state="as expected", seen="the losses to compare with", figures=figures, texts=texts)
    return compare_losses(day, losses, figures, texts, words=_describe_memory(day, name))


def save_and_kill(day: GpuDay) -> Outcome:
    """A training on both nodes that saves while it trains; the last rank kills itself between two saves."""
    half = day.sizes.finetune_steps // 2
    wish = {"kill": [half + 1, day.world - 1]}
    directory = new_directory(day, "save")
    settings = {"sharding": "full", "save_steps": half, "output_dir": str(directory)}
    done = train_example(day, "save", "two", settings, wish)
    texts = {"aboard": done.output, "output": format_logs(day.read_logs("save"))}
    finding = find_verdict(day, "save")
    lines = [line for line in day.read_metrics("save") if "loss" in line]
    if finding is None or not lines:
        return explain_failure(day, "save", done, texts)
    stalls = [read_number(line.get("seconds", {}).get("checkpoint")) or 0.0 for line in lines]
    steps = [read_number(line.get("step_seconds")) or 0.0 for line in lines]
    figures: dict[str, Figure] = {"stall of the asynchronous save, s": round(sum(stalls), 4), "step, s": min(steps)}
    figures["directory"] = directory.name
    figures["verdict"] = f"{finding.get('code')} on {finding.get('nodes')}"
    right = finding.get("code") == "run-killed" and finding.get("nodes") == [day.nodes[-1]]
    seen = f"saved at step {half}, killed at {half + 1}: {figures['verdict']}"
    return Outcome(state="as expected" if right else "differs", seen=seen, figures=figures, texts=texts)


def resume_elsewhere(day: GpuDay) -> Outcome:
    """The same training on the first node alone, in another layout, from the checkpoint of both."""
    half = day.sizes.finetune_steps // 2
    directory = day.folder / "trained" / str(day.results["save"].figures["directory"])
    done = train_example(day, "resume", "one", {"sharding": "none", "save_steps": half, "output_dir": str(directory)})
    texts = {"aboard": done.output, "output": format_logs(day.read_logs("resume"))}
    losses = read_losses(day, "resume")
    if done.code != 0 or not losses:
        return explain_failure(day, "resume", done, texts)
    figures: dict[str, Figure] = {f"loss {step}": loss for step, loss in losses.items()}
    figures["first step after the resume"] = float(min(losses))
    if min(losses) != half + 1:
        seen = f"it began with step {min(losses)}, not with {half + 1}"
        return Outcome(state="differs", seen=seen, figures=figures, texts=texts)
    return compare_losses(day, losses, figures, texts, words=_describe_memory(day, "resume"))


def train_example(
    day: GpuDay, name: str, where: str, settings: Mapping[str, Any], wish: Mapping[str, Any] | None = None
) -> Command:
    """Trains examples/finetune in float32 with the same sequences per step everywhere."""
    folder = day.folder / "finetune"
    if not (folder / "model").is_dir():
        for program in ("make_data.py", "make_model.py"):
            subprocess.run([sys.executable, program], cwd=folder, check=True, capture_output=True, timeout=1200)
    data = {"files": str(folder / "train.jsonl"), "max_length": 64}
    train = {
        "model": str(folder / "model"),
        "output_dir": str(new_directory(day, name)),
        "max_steps": day.sizes.finetune_steps,
        "global_batch_size": 2 * day.world,
        "per_device_train_batch_size": 2,
        "learning_rate": 3e-3,
        "logging_steps": 1,
        "bf16": False,
        "device": "cuda",
        **settings,
    }
    options = ["--restarts", "0"]
    if where == "one":
        options += ["--include", day.nodes[0]]
    if train["device"] == "cpu":
        options += ["--ranks", "1"]
    return run_training(day, name, data, train, options=options, wish=wish, minutes=4)


def run_training(
    day: GpuDay,
    name: str,
    data: Mapping[str, Any],
    train: Mapping[str, Any],
    *,
    minutes: float,
    options: list[str] | None = None,
    wish: Mapping[str, Any] | None = None,
) -> Command:
    """`aboard train`; a wish is for the hook in its ranks."""
    if wish is not None:
        hooks = str(day.folder / "programs" / "hooks")
        before = dict(day.cluster.get("env") or {}).get("PYTHONPATH")
        path = f"{hooks}:{before}" if before else hooks
        options = [*(options or []), "--env", f"PYTHONPATH={path}", "--env", f"FIRST_GPU_DAY={json.dumps(wish)}"]
    config = day.write_config(name, data=data, train=train)
    return day.aboard(name, "train", config, *(options or []), minutes=minutes)


def new_directory(day: GpuDay, name: str) -> Path:
    """Where a training writes: a run that was interrupted or is repeated must not resume from its checkpoints."""
    return day.folder / "trained" / f"{name}-{time():.0f}"


def read_losses(day: GpuDay, name: str) -> dict[int, float]:
    """The loss of each step."""
    found = {}
    for line in day.read_metrics(name):
        step, loss = read_number(line.get("step")), read_number(line.get("loss"))
        if step is not None and loss is not None:
            found[int(step)] = loss
    return found


def find_verdict(day: GpuDay, name: str) -> dict[str, Any] | None:
    """The first finding of `aboard why` on the newest run of these records."""
    answer = day.ask(name, "why", "--json")
    findings = answer.get("findings") if isinstance(answer, dict) else None
    return findings[0] if findings and isinstance(findings[0], dict) else None


def explain_failure(day: GpuDay, name: str, done: Command, texts: Mapping[str, str]) -> Outcome:
    """A refusal, or a package that is missing, is "not run", anything else "failed"; both with the verdict."""
    finding = find_verdict(day, name)
    told = f"{finding.get('code')}: {finding.get('seen')}" if finding else done.last
    ran = "time is over" if done.code is None else f"exit code {done.code}"
    refused = done.code in (2, 3) or "is not installed" in told
    seen = Untrusted(f"{'refused' if refused else ran}: {told}").visible(300)
    return Outcome(state="not run" if refused else "failed", seen=seen, texts=texts)


def compare_losses(
    day: GpuDay, losses: Mapping[int, float], figures: dict[str, Figure], texts: Mapping[str, str], *, words: str
) -> Outcome:
    """The outcome of a training by its losses; a step that the CPU doesn't have differs."""
    worst = 0.0
    for step, loss in losses.items():
        expected = day.figure("finetune-cpu", f"loss {step}")
        worst = max(worst, abs(loss - expected) / abs(expected) if expected else float("inf"))
    figures["worst difference to the CPU's losses"] = worst
    seen = f"{len(losses)} losses within {worst:.1e} of the CPU's (limit {LIMIT:g}){words}"
    return Outcome(state="as expected" if worst <= LIMIT else "differs", seen=seen, figures=figures, texts=texts)


def _describe_memory(day: GpuDay, name: str) -> str:
    memory = [read_number(line.get("memory")) for line in day.read_metrics(name)]
    return f"; {max(filter(None, memory), default=0) / 2**20:.0f} MiB per GPU"


def _declare_finetune(where: str, layout: str) -> DayRun:
    nodes = {"one": "1 node", "two": "2 nodes"}[where]
    return DayRun(
        name=f"finetune-{where}-{layout}",
        minutes=2,
        drop=0 if (where, layout) in {("one", "full"), ("two", "full")} else 1,
        proves=f"examples/finetune has the CPU's losses on {nodes}, sharding {layout}",
        perform=partial(finetune, where=where, layout=layout),
        needs=("finetune-cpu",),
    )


FINETUNE_RUNS = (
    DayRun(
        name="finetune-cpu",
        minutes=3,
        drop=0,
        proves="the losses that GPUs must have",
        perform=partial(finetune, where="one", layout=""),
    ),
    *(_declare_finetune(where, layout) for where, layouts in _LAYOUTS.items() for layout in layouts),
)
SAVE_RUNS = (
    DayRun(
        name="save",
        minutes=3,
        drop=1,
        proves="an asynchronous save from GPUs; a killed rank of a training is named",
        perform=save_and_kill,
        question="kill -9 of one of the day's own ranks, in examples/finetune",
    ),
    DayRun(
        name="resume",
        minutes=3,
        drop=1,
        proves="a checkpoint of two nodes resumes on one, in another layout, with the same losses",
        perform=resume_elsewhere,
        needs=("save", "finetune-cpu"),
    ),
)
