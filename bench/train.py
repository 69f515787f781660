"""Training: its speed beside the bare engine and other trainers, its start, its memory, its checkpoints."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import monotonic

import numpy as np

import train_safe
from figures import Figures, main
from train_runs import CONTENDERS, Contender, Given, Size, contest, given, interleaved

LARGE = Size(hidden=512, layers=12, length=256, batch=1)
SMALL = Size(hidden=256, layers=4, length=128, batch=1, vocabulary=4096)
EMPTY = Size(hidden=64, layers=1, length=16, batch=1, vocabulary=1024)
TURNS, STEPS = 9, 3
QUICK_TURNS = 5
# Two per cent are told by the bare loop's turns right beside ours, and by many of them.
DUELS = 21


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's one switch
    """Figures of train."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        names = ["ours", "bare"] if quick else list(CONTENDERS)
        task = given(_new(folder, "task"), SMALL if quick else LARGE)
        for layout, world in [("none", 2)] if quick else [("none", 1), ("none", 2), ("full", 2)]:
            _speed(figures, task, names, layout=layout, world=world, quick=quick)
        _overhead(figures, given(_new(folder, "empty"), EMPTY), quick=quick)
        train_safe.waits(figures, replace(task.training, max_steps=20, logging_steps=20))
        if not quick:
            _start(figures, task)
            train_safe.memory(figures, _new(folder, "memory"))
            train_safe.stalls(figures)
            train_safe.kills(figures, 200)


def _speed(figures: Figures, task: Given, names: Sequence[str], *, layout: str, world: int, quick: bool) -> None:
    """Seconds of a step, turn by turn, against each of the others."""
    with contest(names, task, world=world, layout=layout) as running:
        took = interleaved(running, turns=QUICK_TURNS if quick else TURNS, steps=5 if quick else STEPS)
        pair = {name: running[name] for name in ("ours", "bare")}
        duel = took if quick else interleaved(pair, turns=DUELS, steps=STEPS)
    tokens = world * task.tokens
    for name in [name for name in took if name != "ours"]:
        ours, others = (np.array((duel if name == "bare" else took)[each]) for each in ("ours", name))
        ratios = ours / others
        low, middle, high = _interval(ratios)
        rates = f"{tokens / median(ours):.0f} and {tokens / median(others):.0f} tokens/s"
        note = f"{rates}; median of {len(ours)} turns, 95 % within {low:.3f} to {high:.3f}"
        where = f"{layout}, {world} {'rank' if world == 1 else 'ranks'}"
        if name == "bare":
            # A minute on a busy machine can't tell two per cent: then it is asked whether the interval excludes them.
            value = low if quick else middle
            figures.add(f"{where}: seconds of a step / the bare engine's", value, 1 / 0.98, unit="×", note=note)
        else:
            # Behind nobody beyond the interval.
            figures.add(f"{where}: seconds of a step / {name}'s, low end", low, 1.0, unit="×", note=note)


def _overhead(figures: Figures, task: Given, *, quick: bool) -> None:
    """What Python takes of a step when there is next to nothing to compute."""
    with contest(["ours", "bare"], task, world=1, layout="none") as running:
        took = interleaved(running, turns=QUICK_TURNS if quick else TURNS, steps=50 if quick else 100)
    ours, bare = 1e3 * np.array(took["ours"]), 1e3 * np.array(took["bare"])
    low, middle, high = _interval(ours - bare)
    both = f"{median(ours):.2f} and {median(bare):.2f} ms a step of a near-empty model"
    note = f"{both}; 95 % within {low:.2f} to {high:.2f}"
    value = low if quick else middle
    figures.add("Python's own time a step, more than the bare loop's", value, 1.0, unit="ms", note=note)


def _start(figures: Figures, task: Given) -> None:
    """From the start of the process to the first step."""
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


def _interval(turns: np.ndarray) -> tuple[float, float, float]:
    """The median and its 95 % interval, by drawing turns anew."""
    draws = np.random.default_rng(0).choice(turns, (2000, len(turns)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(low), float(np.median(turns)), float(high)


def _new(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made


if __name__ == "__main__":
    main("train", measure)
