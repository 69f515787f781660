"""`aboard export`: the newest checkpoint of a run, or one that is named, as a model that transformers loads."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from aboard.diagnoses import AboardError, InputError, Problem
from aboard.diagnoses import checkpoint as checkpoints
from aboard.flows.trainer import asked
from aboard.lazy import dataclass
from aboard.record.documents import read_document
from aboard.record.runs import Runs

MODULE = "aboard.train.export"
# A 70B model is 140 GB to read and to write.
SECONDS = 4 * 3600.0
MARKER = "manifest.json"
_STEP = re.compile(r"step-(\d{6,})(?:-(\d+))?")


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written, from which checkpoint."""

    checkpoint: Path
    to: Path
    told: dict[str, Any]


async def export(what: str, to: Path, runs: Runs, *, dtype: str | None) -> Exported:
    """`what` is a checkpoint, a folder of them, or a run's name."""
    _must_be_free(to)
    checkpoint = checkpoint_of(what, runs)
    words = [] if dtype is None else ["--dtype", dtype]
    told = await asked(MODULE, str(checkpoint), str(to), *words, seconds=SECONDS)
    return Exported(checkpoint=checkpoint, to=to, told=told)


def _must_be_free(to: Path) -> None:
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        seen = f"{to} is there already, and not empty"
        problem = Problem(where="--to", seen=seen, fix=checkpoints.EXPORT_TO.fix())
        raise InputError(checkpoints.EXPORT_TO, [problem])


def checkpoint_of(what: str, runs: Runs) -> Path:
    """The newest one that is published."""
    path = Path(what)
    if path.is_dir():
        if (path / MARKER).is_file() and _STEP.fullmatch(path.resolve().name):
            return path
        if (newest := _newest(path)) is None:
            raise AboardError(checkpoints.EXPORT_NONE, _none_in(path), "folder", folder=what)
        return newest
    run = runs.find(what)
    training = read_training(read_document(run.plan))
    if training is None:
        raise AboardError(checkpoints.EXPORT_RUN, f"{run.id} is no training of `aboard train`")
    folder = Path(training["output_dir"]).expanduser()
    if (newest := _newest(folder)) is None:
        raise AboardError(checkpoints.EXPORT_NONE, _none_in(folder), "run", run=run.id)
    return newest


def trained_in(checkpoint: Path, runs: Runs) -> str | None:
    """The newest run that saved into the folder of this checkpoint."""
    for run in runs.all():
        training = read_training(read_document(run.plan))
        if training is not None and Path(training["output_dir"]).expanduser() == checkpoint.parent:
            return run.id
    return None


def read_training(plan: Any) -> dict[str, Any] | None:
    """What the ranks of a recorded plan were to train; None for a run that is no training."""
    match plan:
        case {"env": {"ABOARD_TRAINING": str(text)}}:
            with suppress(ValueError):
                training = json.loads(text)
                return training if isinstance(training, dict) and isinstance(training.get("output_dir"), str) else None
    return None


def published_checkpoints(folder: Path) -> list[tuple[int, int, Path]]:
    """The complete ones on this machine: step, attempt, place."""
    found = [(_STEP.fullmatch(path.name), path) for path in folder.glob("step-*") if (path / MARKER).is_file()]
    return [(int(match[1]), int(match[2] or 1), path) for match, path in found if match]


def _newest(folder: Path) -> Path | None:
    return max(published_checkpoints(folder), default=(0, 0, None))[2]


def _none_in(folder: Path) -> str:
    return f"there is no whole checkpoint in {folder} on this machine"
