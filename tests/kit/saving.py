"""A training whose state is a function of its step, so that whoever reads a checkpoint knows every number in it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aboard.core.plan.training_settings import Training
from aboard.trainer.checkpoint.manager import CheckpointManager
from aboard.trainer.distributed.rank_context import RankContext
from aboard.trainer.optimizer.adamw import LocalAdamW
from aboard.trainer.progress import TrainingProgress

WIDTH = 256


@dataclass(frozen=True)
class Standing:
    """All of an engine that a checkpoint needs."""

    module: nn.Module


class Tied(nn.Module):
    """An embedding, layers, a head that is the embedding again, and a buffer."""

    def __init__(self, width: int = WIDTH, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(101, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, 101, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("seen", torch.zeros(3))


def standing(width: int = WIDTH, layers: int = 2) -> tuple[Standing, LocalAdamW]:
    module = Tied(width, layers)
    return Standing(module=module), LocalAdamW(module.parameters(), fused=True)


def world(rank: int = 0, size: int = 1, **changed: Any) -> RankContext:
    place: dict[str, Any] = {"rank": rank, "size": size, "local_rank": rank, "sharding": "none"}
    return RankContext(**{**place, "device": torch.device("cpu"), **changed})


def training(folder: Path, **changed: Any) -> Training:
    fields: dict[str, Any] = {"model": "m", "data": (), "output_dir": str(folder), "max_length": 8}
    return Training(**{**fields, "global_batch_size": 4, **changed})


def checkpoints(
    folder: Path, *, keep: int | None = None, place: RankContext | None = None, **changed: Any
) -> CheckpointManager:
    return CheckpointManager(folder, place or world(), training(folder, **changed), keep)


def progress(step: int) -> TrainingProgress:
    return TrainingProgress(step=step, index=step * 4, tokens=step * 100, supervised=step * 10, ids=f"{step:032x}")


@torch.no_grad()
def put(engine: Standing, optimizer: LocalAdamW, step: int) -> None:
    """Everything as it is after so many steps."""
    for number, tensor in enumerate(_once(engine.module).values()):
        tensor.copy_(numbers(tensor, step, number))
    for number, parameter in enumerate(engine.module.parameters()):
        optimizer.state[parameter] = {
            "step": torch.tensor(float(step)),
            "exp_avg": numbers(parameter, step, 100 + number),
            "exp_avg_sq": numbers(parameter, step, 200 + number),
        }


def wrong(engine: Standing, optimizer: LocalAdamW, step: int) -> list[str]:
    """What isn't, bit by bit, as `put` has it."""
    found = []
    for number, (name, tensor) in enumerate(_once(engine.module).items()):
        if not torch.equal(tensor, numbers(tensor, step, number)):
            found.append(name)
    for number, parameter in enumerate(engine.module.parameters()):
        state = optimizer.state[parameter]
        if not torch.equal(state["exp_avg"], numbers(parameter, step, 100 + number)):
            found.append(f"exp_avg of {number}")
        if not torch.equal(state["exp_avg_sq"], numbers(parameter, step, 200 + number)):
            found.append(f"exp_avg_sq of {number}")
        if state["step"].item() != step:
            found.append(f"step of {number}")
    return found


def save(folder: Path, *steps: int, keep: int | None = None) -> list[str]:
    """A run that saves these steps and ends; its notes."""
    engine, optimizer = standing()
    store = checkpoints(folder, keep=keep)
    for step in steps:
        put(engine, optimizer, step)
        store.save(engine, optimizer, progress(step), wait=True)
    store.close()
    return store.poll()


def resumed(folder: Path, shape: tuple[int, int] = (WIDTH, 2), **changed: Any) -> tuple[int, list[str]]:
    """The step it continues from, every bit of it right, and the notes."""
    engine, optimizer = standing(*shape)
    store = checkpoints(folder, **changed)
    try:
        found = store.resume(engine, optimizer)
    finally:
        store.close()
    if found is None:
        return 0, store.notes
    assert found == progress(found.step)
    assert wrong(engine, optimizer, found.step) == []
    assert engine.module.get_parameter("head.weight") is engine.module.get_parameter("embedding.weight")
    return found.step, store.notes


def numbers(like: Tensor, step: int, number: int) -> Tensor:
    """No two tensors, steps or elements alike."""
    return (torch.arange(like.numel(), dtype=like.dtype) * 1e-3 + step + number * 1e-2).view(like.shape)


def _once(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
