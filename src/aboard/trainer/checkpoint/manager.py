"""Checkpoints of a run: saved in the background, published when complete, found and verified at resume."""

import json
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Any, NoReturn, Protocol

import torch
from torch import nn

from aboard.core.plan.training_settings import Training
from aboard.core.run.saved_markers import MARKERS, parse_markers
from aboard.trainer.checkpoint.background_save import BackgroundSave, CopyBarrier, TimeBooking
from aboard.trainer.checkpoint.checkpoint_copies import measure_copying
from aboard.trainer.checkpoint.checkpoint_folder import FolderLock
from aboard.trainer.checkpoint.checkpoint_writer import CheckpointState, CheckpointWriter
from aboard.trainer.checkpoint.commit_marker import RunSettings
from aboard.trainer.checkpoint.resume import resume_checkpoint
from aboard.trainer.checkpoint.staging_buffers import StagingBuffers
from aboard.trainer.checkpoint.tensor_slices import (
    StoredTensors,
    TensorSlice,
    collect_tensors,
    select_own_slices,
    slice_model,
    slice_optimizer,
)
from aboard.trainer.data.sampling.packed_sequences import compute_data_identity
from aboard.trainer.distributed.json_exchange import RankExchange
from aboard.trainer.distributed.rank_context import RankContext
from aboard.trainer.distributed.rank_group import CheckpointRanks, find_shared_disks
from aboard.trainer.optimizer.sharded_optimizer import ShardedOptimizer
from aboard.trainer.progress import TrainingProgress
from aboard.trainer.weights.model_files import identify_weights

# The slowest rank's disk may lag behind the fastest by this many seconds.
PATIENCE = 1800.0


class TrainedEngine(Protocol):
    """The part of an engine that a checkpoint needs."""

    @property
    def module(self) -> nn.Module: ...


class CheckpointManager:
    """All ranks create it together, and call `save`, `resume` and `close` at the same steps."""

    def __init__(
        self,
        folder: Path,
        context: RankContext,
        training: Training,
        keep: int | None,
        *,
        spent: TimeBooking = nullcontext,
    ) -> None:
        # What `resume` skipped, and what changed since the checkpoint.
        self.notes: list[str] = []
        # What the resumed checkpoint has beside tensors and progress; empty at a start.
        self.state: Mapping[str, Any] = {}
        self._news: list[str] = []
        self._context = context
        self._training = training
        exchange = RankExchange(size=context.size, patience=PATIENCE)
        disks = find_shared_disks(folder, context, exchange)
        self._group = CheckpointRanks(folder=folder, rank=context.rank, disks=disks, exchange=exchange)
        self._lock: FolderLock | None = None
        self._group.run_collectively(self._lock_folder)
        self._stage = StagingBuffers(rank=context.rank)
        self._copies = bool(training.checkpoint_copies) and disks.count > 1
        self._writer = CheckpointWriter(self._group, keep=keep, copies=self._copies)
        self._copied = CopyBarrier(patience=2 * PATIENCE, spent=spent)
        self._pending: BackgroundSave | None = None
        self._save_seconds = 0.0

    @property
    def published(self) -> int | None:
        """The step of the newest complete checkpoint: saved by this run or resumed from."""
        return self._writer.published

    @property
    def stalled(self) -> float:
        """The seconds that training has waited for saves so far, including those before optimizer steps."""
        return self._save_seconds + self._copied.waited

    def measure_completion(self) -> float | None:
        """The seconds of the newest save until it was complete, and copied as far as this rank's disk shows."""
        if self._writer.newest is None:
            return None
        path, seconds = self._writer.newest
        return seconds + (measure_copying(path) if self._copies else 0.0)

    def save(
        self,
        engine: TrainedEngine,
        optimizer: torch.optim.Optimizer,
        progress: TrainingProgress,
        *,
        state: Mapping[str, Any] = MappingProxyType({}),
        wait: bool = False,
    ) -> float:
        """Returns the seconds of this call; the copy happens afterwards, and the next optimizer step waits for it."""
        began = monotonic()
        self._finish_pending()
        self._copied.guard(optimizer)
        snapshot = self._snapshot(engine.module, optimizer, progress, state)
        self._pending = BackgroundSave(self._writer, snapshot, self._copied, patience=2 * PATIENCE)
        if wait:
            self._finish_pending()
        took = monotonic() - began
        self._save_seconds += took
        return took

    def poll(self) -> list[str]:
        """What was published or removed since the last call; raises the error of a failed save."""
        if self._pending is not None and self._pending.done:
            self._finish_pending()
        news, self._news = self._news, []
        return news

    def resume(self, engine: TrainedEngine, optimizer: ShardedOptimizer) -> TrainingProgress | None:
        """Restores model and optimizer and returns their progress, or None to start; `notes` say what was skipped."""
        outcome = resume_checkpoint(
            self._group,
            self._training.resume,
            engine.module,
            optimizer,
            lambda: self._present(engine.module),
            copies=self._copies,
            markers=None if MARKERS not in os.environ else parse_markers(os.environ[MARKERS]),
        )
        self.notes = outcome.notes
        self._writer.broken |= outcome.broken
        if outcome.marker is not None:
            self._writer.continue_from(outcome.marker)
        self.state = {} if outcome.marker is None else outcome.marker.state
        return None if outcome.marker is None else TrainingProgress.of(outcome.marker.progress)

    def close(self) -> None:
        """Waits for a save under way, and releases the folder."""
        try:
            self._finish_pending()
        finally:
            self._copied.leave()
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def _lock_folder(self) -> None:
        if self._group.leads:
            self._lock = FolderLock(self._group.folder)

    def _finish_pending(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._news += pending.result()

    def _snapshot(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, progress: TrainingProgress, extra: Mapping[str, Any]
    ) -> CheckpointState:
        try:
            named = collect_tensors(module)
            state = _clone_buffers(slice_model(named, self._context.size), named)
            state += slice_optimizer(named, optimizer, self._context.size)
            mine = list(select_own_slices(state, self._context.rank, self._group.disks.of(self._context.rank)))
            about = asdict(self._present(module))
            about |= {"progress": progress.content(), "ties": named.ties, "state": dict(extra)}
            tensors = {each.name: each.whole for each in state}
            return CheckpointState(step=progress.step, about=about, tensors=tensors, copy=self._stage.ready(mine))
        except Exception as error:  # noqa: BLE001 - the other ranks are about to wait for this one: they get the error
            return CheckpointState(step=progress.step, about={}, tensors={}, copy=_make_raiser(error))

    def _present(self, module: nn.Module) -> RunSettings:
        return RunSettings(
            training=json.loads(json.dumps(asdict(self._training))),
            step_size=self._training.step_size(self._context.size),
            world=self._context.size,
            sharding=self._context.sharding,
            versions=_read_versions(),
            data=self._data,
            config=_read_model_config(module),
            base=self._base,
        )

    @cached_property
    def _data(self) -> str:
        return compute_data_identity(self._training.data)

    @cached_property
    def _base(self) -> str:
        return identify_weights(Path(self._training.model)) if self._training.adapter else ""


def _clone_buffers(state: list[TensorSlice], stored: StoredTensors) -> list[TensorSlice]:
    """Copies buffers at once: unlike parameters, a forward pass may change them."""
    moving = {f"model/{name}" for name, tensor in stored.tensors.items() if not isinstance(tensor, nn.Parameter)}
    return [replace(each, local=each.local.clone()) if each.name in moving else each for each in state]


def _make_raiser(error: Exception) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail


@cache
def _read_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("aboard", "torch", "transformers"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    return versions


def _read_model_config(module: nn.Module) -> Mapping[str, Any] | None:
    config = getattr(module, "config", None)
    if config is None:
        return None
    content: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return content
