"""The record of a long run that nobody had to wait for: what a conductor of 64 nodes × 8 ranks would have written."""

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aboard.core.run.lateness import LatenessWindow, RankLateness
from aboard.record.event_log import decode_event
from aboard.record.metrics_log import MetricsLine
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record

NODES, SLOTS = 64, 8
RANKS = NODES * SLOTS
DAY = 86_400.0
BEGAN = 1_800_000_000.0
EVERY = 10
LATE_RANK = 203
_SAVE_STEPS, _EVAL_STEPS = 2_000, 5_000
_START_SECONDS, _STOP_SECONDS = 90.0, 25.0
_DRAW = random.Random(36)  # noqa: S311 - no secrets
_LIVE = {"rss": 2**34, "cpu": 3.1, "step_seconds": 1.0}


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """From when to when it made steps, and from which step to which."""

    number: int
    began: float
    ended: float
    first: int
    last: int


def write_long_run(folder: Path, *, steps: int) -> RunDirectory:
    """A step takes about a second. Three attempts fail; rank 203 is late for 3 % of the run."""
    run = RunDirectory(folder)
    run.make()
    record = Record.open(run, ranks=RANKS, nodes=NODES)
    names = [f"n{number + 1}" for number in range(NODES)]
    training = {"model": "/shared/model", "output_dir": "/shared/out", "learning_rate": 3e-4, "save_steps": _SAVE_STEPS}
    nodes = [
        {"name": name, "starts": [{"child": str(rank), "rank": rank} for rank in _list_ranks(number)]}
        for number, name in enumerate(names)
    ]
    env = {"ABOARD_TRAINING": json.dumps(training), "NCCL_DEBUG": "WARN"}
    record.write_plan({"world": RANKS, "command": "aboard train", "cwd": "/shared", "env": env, "nodes": nodes})
    for attempt in _plan_attempts(steps):
        _write_attempt(record, attempt, names, steps)
    for number, name in enumerate(names):
        for rank in _list_ranks(number):
            record.add_output(name, rank, "stdout", f"step {steps}/{steps}\n".encode() * 50, attempt.ended)
    record.write_findings([])
    record.close()
    return run


def _list_ranks(node: int) -> range:
    return range(node * SLOTS, (node + 1) * SLOTS)


def _plan_attempts(steps: int) -> Iterator[_Attempt]:
    """Each attempt continues from the last checkpoint."""
    at, first = BEGAN + _START_SECONDS, 0
    for number, share in enumerate((0.21, 0.4, 0.78, 1.0), 1):
        last = int(steps * share)
        yield _Attempt(number=number, began=at, ended=at + (last - first), first=first, last=last)
        at, first = at + (last - first) + _STOP_SECONDS + _START_SECONDS, last // _SAVE_STEPS * _SAVE_STEPS


def _write_attempt(record: Record, attempt: _Attempt, names: list[str], steps: int) -> None:
    generation = attempt.number
    _note(record, attempt.began - _START_SECONDS, "generation", {"number": generation})
    for rank in range(RANKS):
        _note(record, attempt.began - 60, "started", {"pid": 1000 + rank}, names[rank // SLOTS], rank)
        _note(record, attempt.began - 20, "phase", {"phase": "group"}, names[rank // SLOTS], rank)
    _note(record, attempt.began, "stepping", {"start": attempt.first})
    if generation > 1:
        _note(record, attempt.began + _SAVE_STEPS / 2, "caught_up", {})
    for step in range(attempt.first + EVERY, attempt.last + 1, EVERY):
        at = attempt.began + step - attempt.first
        late = 0.4 * steps <= step <= 0.43 * steps
        record.metrics.take(_make_line(generation, at, step, steps, late=late))
        record.lateness.take(_make_window(generation, at, late=late))
        if step % _EVAL_STEPS == 0:
            figures = {"eval_loss": _compute_loss(step) + 0.1}
            record.metrics.take(MetricsLine(at=at, generation=generation, step=step, figures=figures))
        if step % _SAVE_STEPS == 0:
            _write_save(record, at + 5, step, names)
        _write_samples(record, names, at, step)
    if attempt.last < steps:
        lost = names[7 * generation]
        _note(record, attempt.ended, "gone", {"why": "no contact for 20 s"}, lost)
        _note(record, attempt.ended + 3, "deciding", {"why": f"{lost} is gone"})
        failed = {
            "code": "run-node-gone",
            "seen": "no contact for 20 s",
            "nodes": [lost],
            "failure": "node",
            "action": "replace",
        }
        steps_done = {"step": attempt.last, "saved": attempt.last // _SAVE_STEPS * _SAVE_STEPS}
        done = {"why": "a spare takes over", **failed, **steps_done}
        _note(record, attempt.ended + _STOP_SECONDS, "recovering", done)
    else:
        end = {"why": "all ranks finished"}
        _note(record, attempt.ended + 1, "deciding", end)
        _note(record, attempt.ended + 2, "finished", {**end, "code": 0, "step": steps, "step_seconds": 1.0})


def _note(record: Record, at: float, kind: str, data: dict[str, Any], node: str = "", rank: int | None = None) -> None:
    child = "" if rank is None else str(rank)
    event = decode_event({"node": node, "at": at, "kind": kind, "child": child, "rank": rank, "data": data})
    assert event is not None
    record.event(event)


def _write_save(record: Record, at: float, step: int, names: list[str]) -> None:
    for rank in range(RANKS):
        files = [f"{part}-{rank:05}-of-{RANKS:05}.safetensors" for part in ("model", "optimizer")]
        saved = {"checkpoint": f"step-{step:06}", "serial": step // _SAVE_STEPS, "files": files}
        _note(record, at, "saved", saved, names[rank // SLOTS], rank)


def _compute_loss(step: int) -> float:
    return 2.0 + 8.0 / math.sqrt(1 + step / 200) + _DRAW.gauss(0, 0.02)


def _make_line(generation: int, at: float, step: int, steps: int, *, late: bool) -> MetricsLine:
    rate = 4.1e6 * (0.8 if late else 1.0) * _DRAW.uniform(0.98, 1.02)
    figures = {
        "loss": None if step % 70_000 == 0 else _compute_loss(step), "grad_norm": _DRAW.uniform(0.2, 0.6),
        "learning_rate": 3e-4 * min(1.0, step / 2000) * (1 - step / (2 * steps)), "skipped": 0.0,
        "tokens": 4.2e6 * step, "supervised": 4.2e6 * step, "tokens_per_second": rate,
        "tokens_per_second_per_rank": rate / RANKS, "mfu": rate / 1e7, "memory": 6.1e10, "step_seconds": 1.0,
        "steps": float(steps), "eta": float(steps - step), "goodput": 0.97,
    }  # fmt: skip
    seconds = {
        "forward_backward": 7.4, "communication": 1.5, "optimizer": 0.7, "data": 0.2, "other": 0.15, "checkpoint": 0.05,
    }  # fmt: skip
    return MetricsLine(at=at, generation=generation, step=step, figures=figures, seconds=seconds)


def _make_window(generation: int, at: float, *, late: bool) -> LatenessWindow:
    """Most ranks wait a little for a dozen others."""
    found = {
        _DRAW.randrange(RANKS): RankLateness(mean=_DRAW.uniform(2e-4, 2e-3), worst=0.01, group="0") for _ in range(12)
    }
    if late:
        found[LATE_RANK] = RankLateness(mean=0.2, worst=0.4, group="0")
    return LatenessWindow(
        at=at,
        generation=generation,
        count=640,
        interval=0.016,
        uncertainty=2e-4,
        late=found,
        measured=((0, RANKS - 1),),
    )


def _write_samples(record: Record, names: list[str], at: float, step: int) -> None:
    """Equal for all nodes but the load, since only the size of the record matters."""
    gpus = [[97.0, 6.1e10, 8.5e10, 640.0 + step % 50, 61.0]] * SLOTS
    for number, name in enumerate(names):
        node = {
            "load": 20.0 + (step // EVERY * 7 + number * 13) % 97 / 10, "memory": 0.41, "memory_total": 2**40,
            "received": step * 10**9, "sent": step * 10**9 + number, "gpus": gpus,
        }  # fmt: skip
        record.samples(
            name, at, {"node": node, "children": {str(rank): {**_LIVE, "step": step} for rank in _list_ranks(number)}}
        )
