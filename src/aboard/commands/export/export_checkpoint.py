"""`aboard export`: converts a checkpoint, a run's newest or best, to a model or adapter that others load."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, cast

from aboard.commands.shared.local_checkpoints import (
    ChosenCheckpoint,
    choose_checkpoint,
    find_checkpoint,
    read_intact_marker,
)
from aboard.commands.sync.download import OnDownload
from aboard.commands.train.checkpoints.gather_checkpoint import GatherRequest, gather_checkpoint
from aboard.commands.train.checkpoints.recorded_checkpoints import RecordedTraining, read_recorded_training
from aboard.commands.train.trainer_process import ask_trainer
from aboard.config.slurm_allocation import read_allocation
from aboard.diagnoses import AboardError, InputError
from aboard.lazy_dataclass import dataclass
from aboard.record.json_documents import read_document, read_training
from aboard.record.runs import Runs
from aboard.trainer.checkpoint.best_evaluation import BestEvaluation
from aboard.trainer.checkpoint.checkpoint_parts import MODEL_PREFIX, list_slices, select_parts
from aboard.trainer.diagnoses import checkpoint as checkpoints
from aboard.transport.node_dialer import NodeDialer

MODULE = "aboard.trainer.model.export"
# A 70B model means reading and writing 140 GB.
SECONDS = 4 * 3600.0


class ExportReport(TypedDict):
    """What was written; `base` is the model that an exported adapter needs."""

    files: int
    bytes: int
    dtype: str
    base: str | None
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """The exported model, its checkpoint, and the exporter's report.

    `nodes` are those that parts were gathered from. `best` is the evaluation for which this checkpoint was chosen
    instead of the newest. `active` means that the run still trains, and will save newer checkpoints.
    """

    checkpoint: Path
    to: Path
    report: ExportReport
    nodes: tuple[str, ...] = ()
    best: BestEvaluation | None = None
    active: bool = False


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """What to export: a checkpoint, a folder of checkpoints, or a run, of which `name` is one checkpoint.

    Parts that are only on nodes go to `cache` first.
    """

    what: str
    to: Path
    cache: Path
    dtype: str | None = None
    name: str | None = None
    # Of a run with an adapter: merged into the base model, instead of the adapter alone.
    merge: bool = False
    # For a checkpoint of somebody else's; a run of this user records whether its code is trusted.
    trust_remote_code: bool = False


async def export_checkpoint(
    request: ExportRequest,
    runs: Runs,
    *,
    on_progress: OnDownload = lambda _progress: None,
    on_gathered: Callable[[], None] = lambda: None,
) -> ExportResult:
    """Exports the checkpoint; without a shared disk, it gathers the parts from the run's nodes first."""
    _require_empty(request.to)
    found = find_checkpoint(request.what, request.name)
    if found is not None:
        return replace(await _convert_checkpoint(request, found.path, {}), best=found.best)
    run = runs.find(request.what, "run, and no directory")
    training = read_training(read_document(run.plan))
    if training is None:
        raise AboardError(checkpoints.EXPORT_RUN, f"{run.id} was not started by `aboard train`")
    if request.merge and training.get("adapter") is None:
        # Before parts of a large model are fetched.
        seen = f"{run.id} has all weights: the run trained no adapter that could be merged"
        raise AboardError(checkpoints.EXPORT_MERGE, seen, what=request.what, to=request.to)
    job = await asyncio.to_thread(read_allocation, os.environ)
    recorded = read_recorded_training([run], training["output_dir"], job)
    local = _find_local(training["output_dir"], recorded, request.name)
    if local is not None:
        return replace(await _convert_checkpoint(request, local.path, training), best=local.best, active=run.live)
    gather = GatherRequest(
        run=run.id,
        folder=training["output_dir"],
        recorded=recorded,
        cache=request.cache,
        to=request.to,
        name=request.name,
    )
    dialer = NodeDialer()
    try:
        gathered = await gather_checkpoint(gather, dialer, on_progress)
    except AboardError as error:
        if error.code == checkpoints.EXPORT_NONE.code and run.live:
            seen = f"{run.id} is still running, and has saved no complete checkpoint yet"
            raise AboardError(checkpoints.EXPORT_NONE, seen, "running", run=run.id) from None
        raise
    finally:
        await dialer.close()
    on_gathered()
    result = await _convert_checkpoint(request, gathered.path, training)
    await asyncio.to_thread(gathered.remove)
    path = Path(training["output_dir"]) / gathered.name
    return replace(result, checkpoint=path, nodes=gathered.nodes, best=gathered.best, active=run.live)


async def _convert_checkpoint(request: ExportRequest, checkpoint: Path, training: Mapping[str, Any]) -> ExportResult:
    """Runs the exporter; a run's settings say where the model is on this machine, the checkpoint where it was."""
    options = [] if request.dtype is None else ["--dtype", request.dtype]
    options += ["--merge"] if request.merge else []
    if request.trust_remote_code or training.get("trust_remote_code") is True:
        options.append("--trust-remote-code")
    for option in ("model", "tokenizer"):
        if isinstance(training.get(option), str):
            options += [f"--{option}", str(_expand_home(training[option]))]
    report = await ask_trainer(MODULE, str(checkpoint), str(request.to), *options, seconds=SECONDS)
    return ExportResult(checkpoint=checkpoint, to=request.to, report=cast("ExportReport", report))


def _expand_home(path: str) -> Path:
    return Path(path).expanduser()


def _require_empty(to: Path) -> None:
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        seen = f"{to} already exists and is not empty"
        raise InputError.of(checkpoints.EXPORT_TO, "--to", seen)


def _find_local(folder: str, recorded: RecordedTraining, name: str | None) -> ChosenCheckpoint | None:
    """The checkpoint, if all of its weights are on this machine, and if the record has no newer one."""
    chosen = choose_checkpoint(_expand_home(folder), name, recorded.markers)
    if chosen is None or chosen.newest is None:
        return chosen
    if name is None and recorded.newest is not None and recorded.newest.serial > chosen.newest.serial:
        return None
    marker = chosen.newest if chosen.best is None else read_intact_marker(chosen.path)
    if marker is None:
        return chosen
    here = {file.name for file in marker.files if (chosen.path / file.name).exists()}
    slices = list_slices(marker.files, prefix=MODEL_PREFIX)
    return None if select_parts(marker, slices, available=here).lacking else chosen
