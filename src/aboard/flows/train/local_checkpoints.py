"""Finds checkpoints on this machine, and the run that saved them."""

import re
from pathlib import Path

from aboard.diagnoses import AboardError
from aboard.diagnoses.trainer import checkpoint as checkpoints
from aboard.record.json_documents import read_document, read_training
from aboard.record.runs import Runs

MARKER = "manifest.json"
_STEP = re.compile(r"step-(\d{6,})(?:-(\d+))?")


def find_checkpoint(what: str) -> Path | None:
    """The checkpoint in this directory, or the newest complete one below it; None if it is no directory."""
    path = Path(what)
    if not path.is_dir():
        return None
    if (path / MARKER).is_file() and _STEP.fullmatch(path.resolve().name):
        return path
    newest = max(list_checkpoints(path), default=None)
    if newest is None:
        seen = f"there is no complete checkpoint in {path} on this machine"
        raise AboardError(checkpoints.EXPORT_NONE, seen, "folder", folder=what)
    return newest[2]


def find_training_run(checkpoint: Path, runs: Runs) -> str | None:
    """The newest run that saved into the folder of this checkpoint."""
    for run in runs.all():
        training = read_training(read_document(run.plan))
        if training is not None and Path(training["output_dir"]).expanduser() == checkpoint.parent:
            return run.id
    return None


def list_checkpoints(folder: Path) -> list[tuple[int, int, Path]]:
    """The complete checkpoints on this machine: step, attempt, path."""
    matches = [(_STEP.fullmatch(path.name), path) for path in folder.glob("step-*") if (path / MARKER).is_file()]
    return [(int(match[1]), int(match[2] or 1), path) for match, path in matches if match]
