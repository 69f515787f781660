"""`aboard export`: converts a checkpoint, by default a run's newest, to a model that transformers loads."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from aboard.diagnoses import AboardError, InputError, Problem
from aboard.diagnoses.trainer import checkpoint as checkpoints
from aboard.flows.train.trainer_process import ask_trainer
from aboard.lazy_dataclass import dataclass
from aboard.record.json_documents import read_document
from aboard.record.runs import Runs

MODULE = "aboard.train.model.export"
# A 70B model means reading and writing 140 GB.
SECONDS = 4 * 3600.0
MARKER = "manifest.json"
_STEP = re.compile(r"step-(\d{6,})(?:-(\d+))?")


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """The exported model, its checkpoint, and the exporter's report."""

    checkpoint: Path
    to: Path
    report: dict[str, Any]


async def export_checkpoint(what: str, to: Path, runs: Runs, *, dtype: str | None) -> ExportResult:
    """Exports `what`: a checkpoint, a folder of checkpoints, or a run's name."""
    _require_empty(to)
    checkpoint = find_checkpoint(what, runs)
    options = [] if dtype is None else ["--dtype", dtype]
    result = await ask_trainer(MODULE, str(checkpoint), str(to), *options, seconds=SECONDS)
    return ExportResult(checkpoint=checkpoint, to=to, report=result)


def _require_empty(to: Path) -> None:
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        seen = f"{to} already exists and is not empty"
        problem = Problem(where="--to", seen=seen, fix=checkpoints.EXPORT_TO.fix())
        raise InputError(checkpoints.EXPORT_TO, [problem])


def find_checkpoint(what: str, runs: Runs) -> Path:
    """The named checkpoint, or the newest complete one of the folder or run."""
    path = Path(what)
    if path.is_dir():
        if (path / MARKER).is_file() and _STEP.fullmatch(path.resolve().name):
            return path
        if (newest := _find_newest(path)) is None:
            raise AboardError(checkpoints.EXPORT_NONE, _describe_missing(path), "folder", folder=what)
        return newest
    run = runs.find(what)
    training = read_training(read_document(run.plan))
    if training is None:
        raise AboardError(checkpoints.EXPORT_RUN, f"{run.id} was not started by `aboard train`")
    folder = Path(training["output_dir"]).expanduser()
    if (newest := _find_newest(folder)) is None:
        raise AboardError(checkpoints.EXPORT_NONE, _describe_missing(folder), "run", run=run.id)
    return newest


def find_training_run(checkpoint: Path, runs: Runs) -> str | None:
    """The newest run that saved into the folder of this checkpoint."""
    for run in runs.all():
        training = read_training(read_document(run.plan))
        if training is not None and Path(training["output_dir"]).expanduser() == checkpoint.parent:
            return run.id
    return None


def read_training(plan: Any) -> dict[str, Any] | None:
    """The training settings in a recorded plan; None for a run that is not a training."""
    match plan:
        case {"env": {"ABOARD_TRAINING": str(text)}}:
            with suppress(ValueError):
                training = json.loads(text)
                return training if isinstance(training, dict) and isinstance(training.get("output_dir"), str) else None
    return None


def list_checkpoints(folder: Path) -> list[tuple[int, int, Path]]:
    """The complete checkpoints on this machine: step, attempt, path."""
    matches = [(_STEP.fullmatch(path.name), path) for path in folder.glob("step-*") if (path / MARKER).is_file()]
    return [(int(match[1]), int(match[2] or 1), path) for match, path in matches if match]


def _find_newest(folder: Path) -> Path | None:
    return max(list_checkpoints(folder), default=(0, 0, None))[2]


def _describe_missing(folder: Path) -> str:
    return f"there is no complete checkpoint in {folder} on this machine"
