"""Estimates a model's states on one rank: weights, gradients, optimizer, and temporary buffers.

Weights and gradients are in fp32, and Adam adds two numbers per weight. Temporary buffers are as measured with
torch 2.13 (tests/train/test_model_needs.py); each figure has its source.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from aboard.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FULL, HALF = 4, 2


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Sizes of a model: the shapes of each group that is gathered together, the root's first, then each layer's."""

    groups: tuple[tuple[tuple[int, ...], ...], ...]
    embedding: int
    tied: bool
    multiplied: int
    buffers: int

    @property
    def total(self) -> int:
        return sum(map(_count_numbers, self.groups))


@dataclass(frozen=True, kw_only=True)
class StateMemory:
    """In bytes: three permanent parts, the peak of all together, and the part present when activations peak."""

    weights: int
    gradients: int
    optimizer: int
    peak: int
    forward: int


def measure_model(model: "PreTrainedModel", layers: Sequence[nn.Module]) -> ModelSizes:
    counted: set[int] = set()
    groups = []
    for module in (*layers, model):
        own = [each for each in module.parameters() if id(each) not in counted]
        counted |= set(map(id, own))
        groups.append(tuple(tuple(each.shape) for each in own))
    lookup = {id(each): each.numel() for each in model.get_input_embeddings().parameters()}
    head = model.get_output_embeddings()
    tied = head is not None and any(id(each) in lookup for each in head.parameters())
    matrices = {id(each): each.numel() for each in model.parameters() if each.dim() > 1}
    return ModelSizes(
        groups=(groups[-1], *groups[:-1]),
        embedding=sum(lookup.values()),
        tied=tied,
        multiplied=sum(matrices.values()) - (0 if tied else sum(lookup.values())),
        buffers=sum(each.nbytes for each in model.buffers()),
    )


def estimate_replicated(model: ModelSizes, *, half: bool, micro: int, ranks: int) -> StateMemory:
    """Replicated on every rank. DDP's buckets hold the gradients from the start; until reduced, gradients are extra."""
    total = model.total
    stays = FULL * total * 3
    buckets = FULL * total if ranks > 1 else 0
    before = FULL * total if micro > 1 else 0
    copies = HALF * model.multiplied if half else 0
    beside = ranks > 1 or micro > 1
    parts = (
        FULL
        * model.embedding
        * (_count_gradient_parts(micro) if model.tied and beside else 2 * model.tied or int(beside))
    )
    after = 0 if buckets or before else FULL * total
    peak = stays + buckets + before + max(copies, after + parts)
    return StateMemory(
        weights=FULL * total,
        gradients=(buckets + before) or FULL * total,
        optimizer=2 * FULL * total,
        peak=peak + model.buffers,
        forward=stays + buckets + before + copies + model.buffers,
    )


def estimate_sharded(
    model: ModelSizes, *, shards: int, replicas: int, half: bool, micro: int, keep: bool, hold: bool
) -> StateMemory:
    """FSDP: a rank has its shard and gathers one layer at a time; the root's own weights stay gathered throughout."""
    size = HALF if half else FULL
    accumulated = micro > 1
    total, root = model.total, _count_numbers(model.groups[0])
    layer = max(map(_count_numbers, model.groups[1:]), default=0)
    part = sum(_count_shard(group, shards) for group in model.groups)
    roots = _count_shard(model.groups[0], shards)
    stays = 3 * FULL * part
    # Between micro-batches, what was reduced within a node waits for the other nodes' part.
    deferred = FULL * (part - roots) if replicas > 1 and not hold and micro > (2 if keep else 1) else 0
    before = (FULL * total if hold else FULL * part + deferred) if accumulated else 0
    # The head's gradient waits here until the root's is complete.
    head = size * model.embedding
    # A layer's gradients: in the compute type, as a message in fp32, and reduced.
    message = size * layer + FULL * (layer + layer // shards)
    added = keep and hold and accumulated and not half
    if added:
        # Accumulated in the type that is sent: new gradients are added, and sent from there.
        gathered = stays + before + size * total
        forward = gathered + head
        within = max(
            gathered + head * (_count_gradient_parts(micro) if model.tied else 1), gathered + message - size * layer
        )
    elif keep:
        forward = stays + before + size * total + head
        within = forward + message
    else:
        # One layer in use, the next being gathered, and the message that carries it.
        forward = stays + before + size * (root + 3 * layer) + head
        # While earlier gradients are reduced, the next layer is being gathered as well.
        ahead = size * layer if accumulated and not hold and replicas == 1 else 0
        within = stays + max(before, FULL * (part - roots)) + size * (root + layer) + ahead + head + message
    # The root's gradients come last. Between micro-batches, kept weights are all gathered by then.
    last = stays + (FULL * part + deferred if accumulated else FULL * (part - roots))
    last += FULL * (root + root // shards)
    if keep and accumulated:
        last += size * total + (0 if added else size * root + head)
    elif half:
        # Its weights are still gathered, beside their gradients.
        last += 2 * size * root + head
    else:
        last += size * root + head * (2 if model.tied else 1)
    return StateMemory(
        weights=FULL * part,
        gradients=FULL * part,
        optimizer=2 * FULL * part,
        peak=max(forward, within, last) + model.buffers,
        forward=forward + model.buffers,
    )


def _count_gradient_parts(micro: int) -> int:
    """The gradient of a tied embedding has two parts; from the third micro-batch on, their sum is a third."""
    return 2 if micro == 2 else 3  # noqa: PLR2004 - the second adds to what the first one left


def _count_numbers(group: Sequence[Sequence[int]]) -> int:
    return sum(_multiply_shape(shape) for shape in group)


def _count_shard(group: Sequence[Sequence[int]], shards: int) -> int:
    """The shard of the rank with the most rows: rows are split evenly, and the last shards are smaller."""
    return sum(-(-shape[0] // shards) * _multiply_shape(shape[1:]) for shape in group)


def _multiply_shape(shape: Sequence[int]) -> int:
    result = 1
    for each in shape:
        result *= each
    return result
