"""Jobs of ranks for tests of checkpoints: each function is one job."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from aboard.core.plan.training_settings import Training
from aboard.diagnoses import AboardError
from aboard.trainer.checkpoint.manager import CheckpointManager
from aboard.trainer.checkpoint.tensor_slices import collect_tensors
from aboard.trainer.distributed.rank_context import join_process_group, leave_process_group
from aboard.trainer.model.build_model import build_engine
from aboard.trainer.model.engine import Engine
from aboard.trainer.optimizer.build_optimizer import build_optimizer
from aboard.trainer.optimizer.sharded_optimizer import ShardedOptimizer
from aboard.trainer.progress import TrainingProgress

# The whole of each tensor, hashed.
Hashes = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Came:
    """The state of a rank after resuming, or why it could not."""

    progress: TrainingProgress | None = None
    notes: tuple[str, ...] = ()
    hashes: Hashes | None = None
    error: tuple[str, str, str] | None = None


def save(training: Training, steps: int = 2, folder: str = "") -> Hashes:
    """Trains so many steps on noise, saves after each, and says what was saved last."""
    with ready(training, folder) as (engine, optimizer, store):
        for step in range(1, steps + 1):
            one_step(engine, optimizer, step)
            store.save(engine, optimizer, TrainingProgress(step=step, index=4 * step, ids=f"{step:032x}"))
        return hashes(engine, optimizer)


def resume(training: Training, folder: str = "") -> Came:
    with ready(training, folder) as (engine, optimizer, store):
        try:
            progress = store.resume(engine, optimizer)
        except AboardError as error:
            return Came(error=(error.code, error.seen, error.fix))
        return Came(progress=progress, notes=tuple(store.notes), hashes=hashes(engine, optimizer))


def save_on_a_small_disk(training: Training, rank: int, room: int) -> list[tuple[str, str]]:
    """One good save; then one rank may write so many bytes a file and no more; then there is room again."""
    told = []
    with ready(training, "") as (engine, optimizer, store):
        for step in (1, 2, 3):
            one_step(engine, optimizer, step)
            limit = room if step == 2 and engine.world.rank == rank else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            try:
                store.save(engine, optimizer, TrainingProgress(step=step), wait=True)
            except AboardError as error:
                told.append((error.code, error.seen))
        return told


def save_beside_training(training: Training) -> tuple[Hashes, Hashes]:
    """What was there when the save was asked for, and what is there a step later."""
    with ready(training, "") as (engine, optimizer, store):
        one_step(engine, optimizer, 1)
        then = hashes(engine, optimizer)
        store.save(engine, optimizer, TrainingProgress(step=1))
        one_step(engine, optimizer, 2)
        return then, hashes(engine, optimizer)


@contextmanager
def ready(training: Training, folder: str) -> Iterator[tuple[Engine, ShardedOptimizer, CheckpointManager]]:
    """An engine and its checkpoints; `{node}` in the folder gives each node a disk of its own."""
    world = join_process_group(training)
    try:
        engine = build_engine(training, world)
        optimizer = build_optimizer(training, engine.module)
        place = (folder or training.output_dir).format(node=os.environ.get("GROUP_RANK", "0"))
        store = CheckpointManager(Path(place), world, training, training.save_total_limit)
        yield engine, optimizer, store
        store.close()
    finally:
        leave_process_group(world)


def one_step(engine: Engine, optimizer: ShardedOptimizer, step: int) -> None:
    torch.manual_seed(step)
    ids = torch.randint(3, 200, (2, 8))
    engine.micro(last=True)
    logits = engine.model(input_ids=ids).logits
    (logits.float().square().mean() * engine.loss_factor).backward()
    optimizer.step()
    optimizer.zero_grad()


def hashes(engine: Engine, optimizer: ShardedOptimizer) -> Hashes:
    found: Hashes = {}
    for name, tensor in collect_tensors(engine.module).tensors.items():
        found[name] = _hash(tensor)
        for key, value in sorted(optimizer.state.get(tensor, {}).items()):
            found[f"{key} of {name}"] = _hash(value)
    return found


def _hash(tensor: Tensor) -> str:
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return sha256(whole.detach().numpy().tobytes()).hexdigest()[:12]
