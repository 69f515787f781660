"""Finds checkpoints on this machine, and the run that saved them."""

from collections.abc import Sequence
from pathlib import Path

from aboard.core.run.saved_markers import SavedMarker
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import escape_text
from aboard.engine.records.saved_checkpoints import MARKER, STEP_NAME, list_checkpoints
from aboard.foreign_files import MOST_MARKER, open_foreign_file, read_foreign_file
from aboard.lazy_dataclass import dataclass
from aboard.record.json_documents import read_document, read_training
from aboard.record.runs import Runs
from aboard.trainer.checkpoint.best_evaluation import BestEvaluation, find_best_checkpoint, get_wanted_best
from aboard.trainer.checkpoint.commit_marker import CommitMarker, MarkerError, parse_marker, read_marker_hash
from aboard.trainer.diagnoses import checkpoint as checkpoints


@dataclass(frozen=True, kw_only=True)
class ChosenCheckpoint:
    """The checkpoint to export; `best` is its evaluation if it is not simply the newest, or the one that was named.

    `newest` is the marker of the newest one, if it can be read.
    """

    path: Path
    newest: CommitMarker | None = None
    best: BestEvaluation | None = None


def find_checkpoint(what: str, name: str | None = None) -> ChosenCheckpoint | None:
    """The checkpoint in this directory, or a complete one below it; None if it is no directory."""
    path = Path(what)
    if not path.is_dir():
        return None
    if (path / MARKER).is_file() and STEP_NAME.fullmatch(path.resolve().name):
        return ChosenCheckpoint(path=path)
    chosen = choose_checkpoint(path, name)
    if chosen is None:
        kind = "complete checkpoint" if name is None else f"checkpoint {escape_text(name)}"
        seen = f"there is no {kind} in {path} on this machine"
        raise AboardError(checkpoints.EXPORT_NONE, seen, "folder", folder=what)
    return chosen


def choose_checkpoint(folder: Path, name: str | None, markers: Sequence[SavedMarker] = ()) -> ChosenCheckpoint | None:
    """The one with this name, or the best if the training wants that, or the newest; None if there is none.

    Without a name, those with these markers are preferred, which a record vouches for.
    """
    every = list_checkpoints(folder)
    known = {(each.name, each.sha256) for each in markers if name is None}
    if known:
        every = [each for each in every if (each[2].name, _read_hash(each[2])) in known] or every
    newest = max((each for each in every if name in (None, each[2].name)), default=None)
    if newest is None:
        return None
    marker = read_intact_marker(newest[2])
    best = None if marker is None or name is not None else get_wanted_best(marker.training, marker.state)
    if best is None:
        return ChosenCheckpoint(path=newest[2], newest=marker)
    # Attempts at a step have rising serials.
    found = find_best_checkpoint(best, {path.name: again for _step, again, path in every})
    if found is None:
        raise build_no_best_error(best, newest[2].name, what=str(folder))
    return ChosenCheckpoint(path=folder / found, newest=marker, best=best)


def read_intact_marker(path: Path) -> CommitMarker | None:
    """None if it can't be read: the exporter reports why."""
    try:
        return parse_marker(read_foreign_file(path / MARKER, MOST_MARKER))
    except (OSError, MarkerError):
        return None


def _read_hash(path: Path) -> str:
    """As the marker has it in its first line."""
    try:
        with open_foreign_file(path / MARKER) as file:
            return read_marker_hash(file.readline(200).decode("ascii", "replace"))
    except OSError:
        return ""


def build_no_best_error(best: BestEvaluation, newest: str, *, what: str) -> AboardError:
    """The training wants its best checkpoint, which is gone: `what` is the run or directory to export another of."""
    seen = f"the best checkpoint ({best}) is gone; the newest is {newest}"
    return AboardError(checkpoints.EXPORT_NONE, seen, "newest", what=what, name=newest)


def find_training_run(checkpoint: Path, runs: Runs) -> str | None:
    """The newest run that saved into the folder of this checkpoint."""
    for run in runs.all():
        training = read_training(read_document(run.plan))
        if training is not None and Path(training["output_dir"]).expanduser() == checkpoint.parent:
            return run.id
    return None
