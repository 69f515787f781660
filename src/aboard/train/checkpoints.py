"""Checkpoints of a run: saved behind the training's back, published when whole, found again and verified."""

import json
import platform
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn, Protocol

import torch
from torch import nn

from aboard.core.training import Training
from aboard.data.feed.bins import data_identity
from aboard.train.checkpoint_disks import look
from aboard.train.checkpoint_exchange import Exchange
from aboard.train.checkpoint_folder import Lock
from aboard.train.checkpoint_party import Party
from aboard.train.checkpoint_pending import Copied, Pending, Spent
from aboard.train.checkpoint_slices import Held, Names, model_state, names, optimizer_state, own
from aboard.train.checkpoint_stage import Stage
from aboard.train.checkpoint_writer import Snapshot, Writer
from aboard.train.differences import Present
from aboard.train.progress import Progress
from aboard.train.resume import resume
from aboard.train.world import World

# The slowest rank's disk may be behind the fastest by so much.
PATIENCE = 1800.0


class Trained(Protocol):
    """What a checkpoint needs of an engine."""

    @property
    def module(self) -> nn.Module: ...


class Checkpoints:
    """All ranks make it together, and call `save`, `resume` and `close` at the same steps."""

    def __init__(
        self, folder: Path, world: World, training: Training, keep: int | None, *, spent: Spent = nullcontext
    ) -> None:
        # What `resume` skipped, and what is set otherwise than then.
        self.notes: list[str] = []
        self._news: list[str] = []
        self._world = world
        self._training = training
        exchange = Exchange(size=world.size, patience=PATIENCE)
        disks = look(folder, world, exchange)
        self._party = Party(folder=folder, rank=world.rank, disks=disks, exchange=exchange)
        self._lock: Lock | None = None
        self._party.together(self._take)
        self._stage = Stage(rank=world.rank)
        self._writer = Writer(self._party, keep=keep)
        self._copied = Copied(patience=2 * PATIENCE, spent=spent)
        self._pending: Pending | None = None
        self._stood = 0.0
        self._data: str | None = None

    @property
    def published(self) -> int | None:
        """The step of the newest checkpoint that is complete: one that was saved, or the one that was resumed."""
        return self._writer.published

    @property
    def stalled(self) -> float:
        """All seconds that training stood still for saves so far, also those before a step of the optimizer."""
        return self._stood + self._copied.waited

    def save(
        self, engine: Trained, optimizer: torch.optim.Optimizer, progress: Progress, *, wait: bool = False
    ) -> float:
        """Seconds that this call took; the copy is made afterwards, and the next step of the optimizer waits for it."""
        began = monotonic()
        self._settle()
        self._copied.guard(optimizer)
        snapshot = self._snapshot(engine.module, optimizer, progress)
        self._pending = Pending(self._writer, snapshot, self._copied, patience=2 * PATIENCE)
        if wait:
            self._settle()
        took = monotonic() - began
        self._stood += took
        return took

    def poll(self) -> list[str]:
        """What was published or removed since the last time; raises what a save failed of."""
        if self._pending is not None and self._pending.done:
            self._settle()
        news, self._news = self._news, []
        return news

    def resume(self, engine: Trained, optimizer: torch.optim.Optimizer) -> Progress | None:
        """The progress that model and optimizer are at now, or None to begin; `notes` say what was skipped and why."""
        found = resume(
            self._party, self._training.resume, engine.module, optimizer, lambda: self._present(engine.module)
        )
        self.notes = found.notes
        self._writer.broken |= found.broken
        self._writer.published = None if found.marker is None else found.marker.step
        return None if found.marker is None else Progress.of(found.marker.progress)

    def close(self) -> None:
        """Waits for what is being written, and lets go of the folder."""
        try:
            self._settle()
        finally:
            self._copied.leave()
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def _take(self) -> dict[str, Any]:
        if self._party.leads:
            self._lock = Lock(self._party.folder)
        return {}

    def _settle(self) -> None:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._news += pending.result()

    def _snapshot(self, module: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> Snapshot:
        try:
            named = names(module)
            state = _still(model_state(named, self._world.size), named)
            state += optimizer_state(named, optimizer, self._world.size)
            mine = list(own(state, self._world.rank, self._party.disks.of(self._world.rank)))
            about = asdict(self._present(module)) | {"progress": progress.content(), "ties": named.ties}
            tensors = {each.name: each.whole for each in state}
            return Snapshot(step=progress.step, about=about, tensors=tensors, copy=self._stage.ready(mine))
        except Exception as error:  # noqa: BLE001 - the other ranks are about to wait for this one: it is told to them
            return Snapshot(step=progress.step, about={}, tensors={}, copy=_raising(error))

    def _present(self, module: nn.Module) -> Present:
        return Present(
            training=json.loads(json.dumps(asdict(self._training))),
            step_size=self._training.step_size(self._world.size),
            world=self._world.size,
            sharding=self._world.sharding,
            versions=_versions(),
            data=self._identity(),
            config=_config(module),
        )

    def _identity(self) -> str:
        if self._data is None:
            self._data = data_identity(self._training.data)
        return self._data


def _still(state: list[Held], named: Names) -> list[Held]:
    """Buffers are copied at once: a forward pass may change them, which it never does to parameters."""
    moving = {f"model/{name}" for name, tensor in named.tensors.items() if not isinstance(tensor, nn.Parameter)}
    return [replace(each, local=each.local.clone()) if each.name in moving else each for each in state]


def _raising(error: Exception) -> Callable[[], NoReturn]:
    def fail() -> NoReturn:
        raise error

    return fail


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("aboard", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def _config(module: nn.Module) -> Mapping[str, Any] | None:
    config = getattr(module, "config", None)
    if config is None:
        return None
    content: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return content
