"""`aboard train`: speed against the bare engine and other trainers, start time, memory, checkpoints."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import monotonic

import numpy as np

import train_safe
from figures import Figures, main
from train_runs import CONTENDERS, Contender, Size, Task, prepare_task, run_interleaved, start_contest

LARGE = Size(hidden=512, layers=12, length=256, batch=1)
SMALL = Size(hidden=256, layers=4, length=128, batch=1, vocabulary=4096)
EMPTY = Size(hidden=64, layers=1, length=16, batch=1, vocabulary=1024)
TURNS, STEPS = 9, 3
QUICK_TURNS = 5
# A difference of 2 % needs many turns, alternating with the bare loop.
DUELS = 21


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Measures training speed, start time, memory estimates, save stalls and kills."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        names = ["ours", "bare"] if quick else list(CONTENDERS)
        task = prepare_task(_make_folder(folder, "task"), SMALL if quick else LARGE)
        for layout, world in [("none", 2)] if quick else [("none", 1), ("none", 2), ("full", 2)]:
            _measure_speed(figures, task, names, layout=layout, world=world, quick=quick)
        _measure_overhead(figures, prepare_task(_make_folder(folder, "empty"), EMPTY), quick=quick)
        train_safe.measure_waits(figures, replace(task.training, max_steps=20, logging_steps=20))
        if not quick:
            _measure_start(figures, task)
            train_safe.measure_memory(figures, _make_folder(folder, "memory"))
            train_safe.measure_stalls(figures)
            train_safe.measure_kills(figures, 200)


def _measure_speed(figures: Figures, task: Task, names: Sequence[str], *, layout: str, world: int, quick: bool) -> None:
    """Step time in alternating turns, against each of the others."""
    with start_contest(names, task, world=world, layout=layout) as running:
        took = run_interleaved(running, turns=QUICK_TURNS if quick else TURNS, steps=5 if quick else STEPS)
        pair = {name: running[name] for name in ("ours", "bare")}
        duel = took if quick else run_interleaved(pair, turns=DUELS, steps=STEPS)
    tokens = world * task.tokens
    for name in [name for name in took if name != "ours"]:
        ours, others = (np.array((duel if name == "bare" else took)[each]) for each in ("ours", name))
        ratios = ours / others
        low, middle, high = compute_interval(ratios)
        rates = f"{tokens / median(ours):.0f} and {tokens / median(others):.0f} tokens/s"
        note = f"{rates}; median of {len(ours)} turns, 95 % within {low:.3f} to {high:.3f}"
        where = f"{layout}, {world} {'rank' if world == 1 else 'ranks'}"
        if name == "bare":
            # A minute on a busy machine cannot resolve 2 %: --quick fails only if the interval excludes them.
            value = low if quick else middle
            figures.add(f"{where}: step time / bare engine's", value, 1 / 0.98, unit="×", note=note)
        else:
            # Not slower than any, beyond the interval.
            figures.add(f"{where}: step time / {name}'s, low end", low, 1.0, unit="×", note=note)


def _measure_overhead(figures: Figures, task: Task, *, quick: bool) -> None:
    """Python's overhead per step, with next to nothing to compute."""
    with start_contest(["ours", "bare"], task, world=1, layout="none") as running:
        took = run_interleaved(running, turns=QUICK_TURNS if quick else TURNS, steps=50 if quick else 100)
    ours, bare = 1e3 * np.array(took["ours"]), 1e3 * np.array(took["bare"])
    low, middle, high = compute_interval(ours - bare)
    both = f"{median(ours):.2f} and {median(bare):.2f} ms per step of a near-empty model"
    note = f"{both}; 95 % within {low:.2f} to {high:.2f}"
    value = low if quick else middle
    figures.add("Python overhead per step beyond the bare loop's", value, 1.0, unit="ms", note=note)


def _measure_start(figures: Figures, task: Task) -> None:
    """Time from process start to the first step."""
    took = {}
    for name in ("ours", "HF Trainer"):
        began = monotonic()
        contender = Contender(name, task, world=1, layout="none")
        try:
            contender.first(within=120)
            took[name] = monotonic() - began
        finally:
            contender.end()
    ours, other = took["ours"], took["HF Trainer"]
    figures.add("start to first step / HF Trainer's", ours / other, 1.0, unit="×", note=f"{ours:.1f} and {other:.1f} s")


def compute_interval(turns: np.ndarray) -> tuple[float, float, float]:
    """The median and its 95 % bootstrap interval."""
    draws = np.random.default_rng(0).choice(turns, (2000, len(turns)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(low), float(np.median(turns)), float(high)


def _make_folder(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made


if __name__ == "__main__":
    main("train", measure)
