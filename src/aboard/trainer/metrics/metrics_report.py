"""Reports metrics on rank 0: to a file that trackers are fed from, as short lines, and to the head."""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import count
from math import isfinite
from pathlib import Path
from time import time
from types import MappingProxyType
from typing import Any, Self, TextIO

from aboard.core.plan.training_settings import Training
from aboard.core.run.run_ledger import RECOVERY_TIMES
from aboard.core.run.run_state import GENERATION
from aboard.core.text.durations import format_duration
from aboard.diagnoses import TrainerError
from aboard.durable_files import HashedFile, open_without_link, sync_folder
from aboard.trainer.diagnoses import checkpoint, training as diagnoses
from aboard.trainer.distributed.rank_consensus import RankConsensus
from aboard.trainer.metrics.head_beacon import send_line, send_metrics
from aboard.trainer.trackers.send_metrics import list_undelivered
from aboard.trainer.trackers.sender_process import TrackerSenders
from aboard.trainer.trackers.tracked_run import FOLDER, METRICS, Cursor, choose_run_id, count_lines, describe_run

_MIN_SHARE = 0.01


class MetricsReporter:
    """The metrics of a run are in one file: a resume appends to it, and lines of lost steps are removed."""

    def __init__(self, training: Training, *, main: bool) -> None:
        self._main = main
        self._training = training
        self._folder = Path(training.output_dir)
        self._file: TextIO | None = None
        self._senders: TrackerSenders | None = None
        self._tracker_run = ""
        self._told: dict[str, Any] = {}
        self._saved: int | None = None
        self._generation = int(os.environ.get(GENERATION, "1"))
        if main:
            _require_trackers(training)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._file is not None:
            self._file.close()
        if self._senders is not None:
            self._senders.finish(succeeded=error is None, say=self.say)

    def begin(
        self, step: int, consensus: RankConsensus | None = None, state: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Called on every rank before the first line, when the step to continue from and its state are known."""
        if self._main:
            _refuse_links(self._folder)
        if self._training.report_to:
            chosen = choose_run_id(self._folder, step, state) if self._main else ""
            self._tracker_run = chosen if consensus is None else consensus.words([chosen])[0][0]
        if not self._main:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        missed = list_undelivered(self._folder) if step == 0 else {}
        aside = drop_lost_lines(self._folder, step)
        if aside is not None:
            self.say(f"moved the metrics of lost steps (after step {step}) to {aside}")
            for name, lines in missed.items():
                self.say(f"{name} has not confirmed {lines} of these lines, and this run starts a new curve")
        handle = open_without_link(self._folder / METRICS, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._file = os.fdopen(handle, "a", encoding="utf-8")
        self._start_trackers(step)

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, equal on all ranks: rank 0 may be on another node when it is resumed."""
        run = {"run": self._tracker_run, "output_dir": str(self._folder)}
        return {"tracker": run} if self._training.report_to else {}

    def _start_trackers(self, step: int) -> None:
        if not self._training.report_to:
            return
        try:
            run = describe_run(self._training, self._tracker_run, os.environ)
            run.save(self._folder)
            kept = count_lines(self._folder / METRICS)
            for name in self._training.report_to:
                Cursor.load(self._folder, name, run.id).truncate(kept, step).save(self._folder, name)
            self._senders = TrackerSenders(self._folder, self._training.report_to)
        except OSError as error:
            # No process, or no room on the disk: no reason to stop a training run.
            self.say(f"warning: {' and '.join(self._training.report_to)} can't be started: {error}")

    def line(self, metrics: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        # JSON has no nan: non-finite values are null.
        values = {name: _replace_nonfinite(value) for name, value in metrics.items()}
        values |= {"time": round(time(), 3), "generation": self._generation}
        self._file.write(json.dumps(values, allow_nan=False) + "\n")
        self._file.flush()
        send_line(values)
        # The head sees only the newest: evaluation and end must not replace the loss of this step, and the next step,
        # which may follow before the head has looked, must not replace an evaluation.
        names = ("eval_loss", "best_eval_loss", "start")
        lasting = {name: value for name, value in self._told.items() if name in names}
        self._told = {**(self._told if self._told.get("step") == metrics["step"] else lasting), **metrics}
        send_metrics({**self._told, "saved": self._saved})
        self.say(format_metrics(metrics))

    def announce_start(self, step: int, steps: int) -> None:
        """Reports to the head that the first step begins, after those that were done before."""
        self._told = {"steps": steps, "start": step}
        if self._main:
            send_metrics(self._told)

    def report_save(self, step: int | None) -> None:
        """Reports a complete checkpoint to the head at once: a run that dies now resumes from it."""
        if self._main and step != self._saved:
            self._saved = step
            send_metrics({**self._told, "saved": step})

    def say(self, text: str) -> None:
        if self._main:
            print(text, flush=True)  # noqa: T201 - what a rank says is what the launcher shows


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """One short line for humans."""
    parts = [f"step {metrics['step']}/{metrics['steps']}"]
    if "eval_loss" in metrics:
        return f"{parts[0]} · eval loss {metrics['eval_loss']:.4f}"
    if "wall" in metrics:
        return (
            f"{parts[0]} · ended after {format_duration(metrics['wall'])}:"
            f" {_format_shares(metrics['seconds'], metrics['wall'])}"
        )
    loss = metrics["loss"]
    parts.append(f"loss {loss:.4f}" if loss is not None else "no finite step")
    parts.append(f"lr {metrics['learning_rate']:.2e} · norm {metrics['grad_norm']:.2f}")
    if "loss_scale" in metrics:
        skipped = f" ({metrics['skipped']} skipped)" if metrics["skipped"] else ""
        parts.append(f"scale {metrics['loss_scale']:g}{skipped}")
    parts.append(f"{_format_short(metrics['tokens_per_second'])} tokens/s")
    if metrics["mfu"] is not None:
        parts.append(f"MFU {metrics['mfu']:.0%}")
    return " · ".join([*parts, f"{format_duration(metrics['eta'])} left"])


def _replace_nonfinite(value: Any) -> Any:
    return None if isinstance(value, float) and not isfinite(value) else value


def _format_short(number: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def _format_shares(seconds: Mapping[str, float], wall: float) -> str:
    """The largest first, without those below 1 %; after a restart, only the sum of all steps is known."""
    if "steps" in seconds:
        steps = sum(spent for kind, spent in seconds.items() if kind not in RECOVERY_TIMES)
        seconds = {"steps": steps, **{kind: seconds[kind] for kind in RECOVERY_TIMES if kind in seconds}}
    parts = sorted(((spent / max(wall, 1e-9), kind) for kind, spent in seconds.items()), reverse=True)
    return ", ".join(f"{kind.replace('_', ' + ')} {share:.0%}" for share, kind in parts if share >= _MIN_SHARE)


def _require_trackers(training: Training) -> None:
    """Refuses before the model is loaded; the head has checked the same, unless the check was left out."""
    for name in training.report_to:
        if find_spec(name) is None:
            seen = f"train.report_to has {name}, but Python on rank 0's node doesn't have it"
            raise TrainerError(diagnoses.TRACKER_PACKAGE, seen, package=name, where="rank 0's node")


def _refuse_links(folder: Path) -> None:
    """A directory that was cloned may have links to the user's own files in place of those that are written here."""
    for path in (folder / METRICS, folder / FOLDER):
        if path.is_symlink():
            seen = f"{path} is a link, which Aboard doesn't follow"
            raise TrainerError(checkpoint.WRITE, seen, folder=folder, node=socket.gethostname())


_OLD = "metrics.old-{}.jsonl"


def drop_lost_lines(folder: Path, step: int) -> Path | None:
    """Removes lines after the step to continue from; returns the file they were moved to, None if there were none.

    A killed run has logged steps that it had not saved, and these are repeated; a power cut may leave half a line.
    Removed lines are saved in a file of their own first; then the rest replaces the old file atomically.
    """
    path = folder / METRICS
    if not path.exists() or all(_is_valid_line(line, step) for line in _read_lines(path)):
        return None
    aside = next(place for number in count(1) if not (place := folder / _OLD.format(number)).exists())
    removed, remaining = HashedFile(aside), HashedFile(path)
    for line in _read_lines(path):
        (remaining if _is_valid_line(line, step) else removed).write(line)
    removed.publish(sync=True)
    remaining.publish(sync=True)
    sync_folder(folder)
    return aside


def _read_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def _is_valid_line(line: bytes, step: int) -> bool:
    """Whether it is a complete line of a step that was not lost."""
    try:
        return line.endswith(b"\n") and int(json.loads(line)["step"]) <= step
    except (ValueError, KeyError, TypeError):
        return False
