"""One step: forward and backward for each micro-batch, the norm, the update. Nothing here waits for the device."""

from collections.abc import Callable, Sequence
from hashlib import blake2b

import torch
from torch import Tensor
from torch.optim import AdamW

from aboard.core.training import Training
from aboard.data.feed.bins import Bin
from aboard.data.feed.mix import Draw
from aboard.lazy import dataclass
from aboard.train.batches import Planned
from aboard.train.collate import Collate, Micro
from aboard.train.engine import Engine
from aboard.train.ledger import Ledger
from aboard.train.loss import summed
from aboard.train.masks import Masks
from aboard.train.nonfinite import Tally
from aboard.train.optimizer import update
from aboard.train.world import World


@dataclass(frozen=True, kw_only=True, eq=False)
class Ready:
    """A planned step whose micro-batches are there."""

    planned: Planned
    micro: Sequence[Micro]


@dataclass(frozen=True, kw_only=True)
class Maker:
    """Reads and collates what was planned, in a thread."""

    read: Callable[[Draw], Bin]
    collate: Collate
    device: torch.device

    def __call__(self, planned: Planned) -> Ready:
        micro = [self.collate([self.read(draw) for draw in draws]) for draws in planned.micro]
        if self.device.type == "cuda":
            micro = [each.pinned() for each in micro]
        return Ready(planned=planned, micro=micro)


@dataclass(frozen=True, kw_only=True)
class Stepper:
    """What a step needs that stays the same."""

    training: Training
    world: World
    engine: Engine
    optimizer: AdamW
    masks: Masks
    tally: Tally
    ledger: Ledger

    def __call__(self, ready: Ready, learning_rate: float) -> None:
        """The gradient is that of the sum over all ranks' supervised tokens, divided by how many there are."""
        engine, planned = self.engine, ready.planned
        self.ledger.spend("forward_backward")
        seed(self.world.device, own_seed(self.training.seed, planned.number, self.world.rank))
        weight = engine.loss_scale / max(1, planned.supervised)
        losses = []
        for left, micro in zip(range(len(ready.micro) - 1, -1, -1), ready.micro, strict=True):
            engine.micro(last=left == 0)
            loss = forward(engine, self.masks, micro)
            torch.autograd.backward(loss * weight)
            losses.append(loss.detach())
        self.ledger.spend("optimizer")
        norm = engine.norm()
        update(self.optimizer, norm=norm, max_norm=self.training.max_grad_norm, learning_rate=learning_rate)
        self.tally.add(planned, losses, norm)
        self.ledger.spend("other")


def forward(engine: Engine, masks: Masks, micro: Micro) -> Tensor:
    """The summed loss of one micro-batch."""
    micro = micro.to(engine.world.device)
    return summed(engine.model(**masks.inputs(micro)).logits, micro.labels)


def seed(device: torch.device, number: int) -> None:
    """Of the generators that are drawn from; torch.manual_seed() goes through all kinds of devices, and is slow."""
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)


def own_seed(seed: int, step: int, rank: int) -> int:
    """Dropout differs from rank to rank and from step to step, and a resumed step is the same: no state to be saved."""
    return int.from_bytes(blake2b(f"{seed} {step} {rank}".encode(), digest_size=8).digest(), "little") >> 1
