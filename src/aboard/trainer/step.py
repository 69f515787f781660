"""One step: forward and backward for each micro-batch, the norm, the update. Nothing here waits for the device."""

from collections.abc import Callable, Sequence
from hashlib import blake2b

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from aboard.core.plan.training_settings import Training
from aboard.lazy_dataclass import dataclass
from aboard.trainer.adapter.sample_dropout import compute_token_keys
from aboard.trainer.batch_plan import PlannedStep
from aboard.trainer.collate import Collator, MicroBatch
from aboard.trainer.data.sampling.packed_sequences import PackedSequence
from aboard.trainer.data.sampling.source_mixing import SequenceDraw
from aboard.trainer.distributed.rank_context import RankContext
from aboard.trainer.metrics.step_statistics import StepStatistics
from aboard.trainer.metrics.time_ledger import TimeLedger
from aboard.trainer.model.attention_masks import AttentionMasks
from aboard.trainer.model.engine import Engine
from aboard.trainer.model.loss import compute_loss_sum
from aboard.trainer.model.loss_scale import LossScale
from aboard.trainer.optimizer.build_optimizer import clip_and_update_weights
from aboard.trainer.optimizer.sharded_optimizer import ShardedOptimizer


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedStep:
    """A planned step with its micro-batches."""

    planned: PlannedStep
    micro: Sequence[MicroBatch]


@dataclass(frozen=True, kw_only=True)
class BatchBuilder:
    """Reads and collates a planned step, in a thread; with a seed, also the keys of per-sample dropout."""

    read: Callable[[SequenceDraw], PackedSequence]
    collate: Collator
    device: torch.device
    dropout_seed: int | None = None

    def __call__(self, planned: PlannedStep) -> PreparedStep:
        micro = [self._build_micro_batch(draws) for draws in planned.micro]
        if self.device.type == "cuda":
            micro = [each.pin_memory() for each in micro]
        return PreparedStep(planned=planned, micro=micro)

    def _build_micro_batch(self, draws: Sequence[SequenceDraw]) -> MicroBatch:
        bins, seed = [self.read(draw) for draw in draws], self.dropout_seed
        if seed is None:
            return self.collate(bins)
        keys = [compute_token_keys(seed, draw, len(each.ids)) for draw, each in zip(draws, bins, strict=True)]
        return self.collate(bins, keys)


@dataclass(frozen=True, kw_only=True)
class Stepper:
    """The constant parts of a step."""

    training: Training
    world: RankContext
    engine: Engine
    optimizer: ShardedOptimizer
    masks: AttentionMasks
    statistics: StepStatistics
    ledger: TimeLedger
    loss_scale: LossScale | None = None

    def rehearse(self, ready: PreparedStep) -> None:
        """A pass before the first step, without effect on the weights.

        After its first backward pass, DistributedDataParallel arranges gradients anew, in the order in which they were
        ready. That changes the order in which they are summed over ranks: without a rehearsal, a run that resumes would
        differ in the last bits from one that was never interrupted.
        """
        if isinstance(self.engine.model, DistributedDataParallel):
            self.engine.micro(last=True)
            loss = forward_micro_batch(self.engine, self.masks, ready.micro[-1])
            torch.autograd.backward(loss * 0.0)
            self.optimizer.zero_grad()

    def __call__(self, ready: PreparedStep, learning_rate: float) -> None:
        """The gradient is that of the sum over all ranks' supervised tokens, divided by their number."""
        engine, planned = self.engine, ready.planned
        self.ledger.switch_to("forward_backward")
        seed_generators(self.world.device, derive_seed(self.training.seed, planned.number, self.world.rank))
        scale = None if self.loss_scale is None else self.loss_scale.value
        weight: float | Tensor = engine.loss_factor / max(1, planned.supervised)
        if scale is not None:
            weight = scale * weight
        losses = []
        for left, micro in zip(range(len(ready.micro) - 1, -1, -1), ready.micro, strict=True):
            engine.micro(last=left == 0)
            loss = forward_micro_batch(engine, self.masks, micro)
            torch.autograd.backward(loss * weight)
            losses.append(loss.detach())
        self.ledger.switch_to("optimizer")
        norm = engine.norm() if scale is None else engine.norm() / scale
        clip_and_update_weights(
            self.optimizer,
            norm=norm,
            max_norm=self.training.max_grad_norm,
            learning_rate=learning_rate,
            loss_scale=scale,
        )
        if self.loss_scale is not None:
            self.loss_scale.update(norm)
        if norm.device != self.world.device:
            # That of offloaded gradients is on the CPU; a copy from pageable memory may wait for the GPU.
            norm = norm.pin_memory().to(self.world.device, non_blocking=True)
        self.statistics.add(planned, losses, norm)
        self.ledger.switch_to("other")


def forward_micro_batch(engine: Engine, masks: AttentionMasks, micro: MicroBatch) -> Tensor:
    """The summed loss of one micro-batch."""
    micro = micro.to(engine.world.device)
    if engine.dropout_keys is not None and micro.dropout_keys is not None:
        engine.dropout_keys.set(micro.dropout_keys, micro.keep)
    inputs = masks.inputs(micro)
    if engine.chunked_loss:
        loss: Tensor = engine.model(**inputs, labels=micro.labels)
        return loss
    return compute_loss_sum(engine.model(**inputs).logits, micro.labels)


def seed_generators(device: torch.device, number: int) -> None:
    """Seeds only the generators in use; torch.manual_seed() visits all kinds of devices, and is slow."""
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        torch.cuda.manual_seed(number)


def derive_seed(seed: int, step: int, rank: int) -> int:
    """Dropout differs between ranks and steps, and a resumed step is the same, without saved state."""
    return int.from_bytes(blake2b(f"{seed} {step} {rank}".encode(), digest_size=8).digest(), "little") >> 1
