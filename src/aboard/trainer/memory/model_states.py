"""Estimates a model's states on one rank: weights, gradients, optimizer, and temporary buffers.

Trained weights and their gradients are in fp32, and the optimizer adds its own numbers; frozen weights have their own
type, and neither. Temporary buffers are as measured with
torch 2.13 (tests/train/test_model_needs.py); each figure has its source.
"""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from torch import nn

from aboard.core.plan.training_settings import Optim, Training
from aboard.lazy_dataclass import dataclass
from aboard.trainer.distributed.device_mesh import ShardingKind, require_even_ranks
from aboard.trainer.model.meta_model import find_untied_ends
from aboard.trainer.optimizer.build_optimizer import count_state_bytes, find_layer_matrices

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FULL, HALF = 4, 2
# NF4 with double quantization: half a byte, a byte for each 64 weights, and a float for each 256 of those.
QUANTIZED = 1 / 2 + 1 / 64 + 4 / (64 * 256)


@dataclass(frozen=True, kw_only=True)
class TensorSize:
    """One weight: its shape, the bytes of each of its numbers, whether it is trained, and whether Muon is for it."""

    shape: tuple[int, ...]
    width: float = FULL
    trained: bool = True
    hidden: bool = False


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Sizes of a model: the weights of each group that is gathered together.

    The root's first, then the embedding's and the head's, unless they are tied and in the root's, then each layer's.
    `embedding` counts the embedding's numbers if it is trained; `copied` those of matrices that autocast copies.
    """

    groups: tuple[tuple[TensorSize, ...], ...]
    embedding: int
    tied: bool
    ends: int
    copied: int
    buffers: int
    # Bytes of the largest quantized weight while it is multiplied: dequantized, and cast.
    dequantized: int = 0

    @property
    def total(self) -> int:
        return sum(map(_count_numbers, self.groups))

    @property
    def trained(self) -> int:
        return sum(_count_numbers(_list_trained(group)) for group in self.groups)


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
    ends = find_untied_ends(model)
    hidden = find_layer_matrices(model)
    quantized: dict[int, Any] = {id(each.weight): each for each in model.modules() if hasattr(each, "quantize")}
    groups = []
    for module in (*ends, *layers, model):
        own = [each for each in module.parameters() if id(each) not in counted]
        counted |= set(map(id, own))
        groups.append(
            tuple(_measure_weight(each, hidden=id(each) in hidden, quantized=id(each) in quantized) for each in own)
        )
    lookup = {id(each): each for each in model.get_input_embeddings().parameters()}
    head = model.get_output_embeddings()
    tied = head is not None and any(id(each) in lookup for each in head.parameters())
    copied = {
        id(each): each.numel()
        for each in model.parameters()
        if each.dim() > 1 and each.itemsize == FULL and id(each) not in quantized
    }
    return ModelSizes(
        groups=(groups[-1], *groups[:-1]),
        embedding=sum(each.numel() for each in lookup.values() if each.requires_grad),
        tied=tied,
        ends=len(ends),
        copied=sum(numbers for key, numbers in copied.items() if tied or key not in lookup),
        buffers=sum(each.nbytes for each in model.buffers()),
        dequantized=max(map(_count_dequantized, quantized.values()), default=0),
    )


def _measure_weight(weight: nn.Parameter, *, hidden: bool, quantized: bool) -> TensorSize:
    width = QUANTIZED if quantized else weight.itemsize
    return TensorSize(shape=tuple(weight.shape), width=width, trained=weight.requires_grad, hidden=hidden)


def _count_dequantized(layer: Any) -> int:
    types = {layer.base_dtype, layer.compute_dtype}
    return int(sum(each.itemsize for each in types) * layer.weight.numel())


def estimate_states(
    model: ModelSizes, training: Training, nodes: tuple[int, ...], *, sharding: ShardingKind, keep: bool, hold: bool
) -> StateMemory:
    """The states in one layout, on nodes with this many ranks each."""
    ranks = sum(nodes)
    if sharding == "none" or (ranks == 1 and not training.cpu_offload):
        return _estimate_replicated(model, training, ranks)
    shards = ranks if sharding == "full" else require_even_ranks(nodes)
    return _estimate_sharded(model, training, shards=shards, replicas=ranks // shards, keep=keep, hold=hold)


def _estimate_replicated(model: ModelSizes, training: Training, ranks: int) -> StateMemory:
    """Replicated on every rank. DDP's buckets hold the gradients from the start; until reduced, gradients are extra."""
    micro, half = training.micro_batches(ranks), training.precision != "float32"
    weights = sum(map(_count_bytes, model.groups))
    gradients = FULL * model.trained
    optimizer = _count_optimizer_bytes(model, training.optim, shards=1)
    stays = weights + optimizer
    buckets = gradients if ranks > 1 else 0
    before = gradients if micro > 1 else 0
    copies = (HALF * model.copied if half else 0) + model.dequantized
    beside = ranks > 1 or micro > 1
    copies_of_gradient = _count_gradient_parts(micro) if model.tied and beside else 2 * model.tied or int(beside)
    parts = FULL * model.embedding * copies_of_gradient
    after = 0 if buckets or before else gradients
    peak = stays + buckets + before + max(copies, after + parts)
    return StateMemory(
        weights=weights,
        gradients=(buckets + before) or gradients,
        optimizer=optimizer,
        peak=peak + model.buffers,
        forward=stays + buckets + before + copies + model.buffers,
    )


def _estimate_sharded(
    model: ModelSizes, training: Training, *, shards: int, replicas: int, keep: bool, hold: bool
) -> StateMemory:
    """FSDP: a rank has its shard and gathers one layer at a time; the root's own weights stay gathered throughout.

    An untied head stays gathered from its forward to its backward, and the backward doesn't gather the embedding.
    """
    micro, half = training.micro_batches(shards * replicas), training.precision != "float32"
    size = HALF if half else FULL
    accumulated = micro > 1
    # Gathered weights are in the type that is computed in, gradients in theirs until they are sent.
    gathered = [_count_bytes(group, HALF if half else None) for group in model.groups]
    trained = [_count_numbers(_list_trained(group)) for group in model.groups]
    parts = [_count_shard(_list_trained(group), shards) for group in model.groups]
    first = 1 + model.ends
    root, layer = gathered[0], max(gathered[first:], default=0)
    end = gathered[first - 1] if model.ends else 0
    # The weights whose gradients come last: those of the root, with a tied embedding, or those of an untied one.
    trained_last, trained_layer = trained[1 if model.ends else 0], max(trained[first:], default=0)
    part = sum(parts)
    before_last = part - parts[1 if model.ends else 0]
    weights = sum(_count_shard_bytes(group, shards) for group in model.groups)
    optimizer = _count_optimizer_bytes(model, training.optim, shards=shards)
    stays = weights + optimizer
    # Between micro-batches, what was reduced within a node waits for the other nodes' part.
    deferred = FULL * before_last if replicas > 1 and not hold and micro > (2 if keep else 1) else 0
    before = (FULL * model.trained if hold else FULL * part + deferred) if accumulated else 0
    # A tied head's gradient waits here until the root's is complete; an untied one's is sent at once.
    waiting = 0 if model.ends else size * model.embedding
    head = size * trained[first - 1] if model.ends else waiting
    # A layer's gradients: in the compute type, as a message in fp32, and reduced. An untied head's are like them.
    message = _count_message(trained_layer, size, shards)
    end_message = _count_message(trained[first - 1], size, shards) if model.ends else 0
    added = keep and hold and accumulated and not half
    if added:
        # Accumulated in the type that is sent: new gradients are added, and sent from there.
        kept = stays + before + sum(gathered)
        forward = kept + head
        within = max(
            kept + head * (_count_gradient_parts(micro) if model.tied else 1), kept + message - size * trained_layer
        )
    elif keep:
        forward = stays + before + sum(gathered) + head
        within = forward - head + max(waiting + message, end_message)
    else:
        # One layer in use, the next being gathered, and the message that carries it; the last one is before the head.
        forward = stays + before + root + max(3 * layer + waiting, layer + 2 * end, end + head + 2 * layer)
        # While earlier gradients are reduced, the next layer is being gathered as well.
        ahead = layer if accumulated and not hold and replicas == 1 else 0
        sent = max(waiting + message, end_message)
        within = stays + max(before, FULL * before_last) + root + layer + ahead + sent
    # The last gradients. Between micro-batches, kept weights are all gathered by then.
    last = stays + (FULL * part + deferred if accumulated else FULL * before_last)
    last += FULL * (trained_last + trained_last // shards)
    if keep and accumulated:
        last += sum(gathered) + (0 if added else size * trained_last + waiting)
    elif half or model.ends:
        # The root's weights are still gathered, beside the gradients.
        last += root + size * trained_last + waiting
    else:
        last += root + waiting * (2 if model.tied else 1)
    return StateMemory(
        weights=weights,
        gradients=FULL * part,
        optimizer=optimizer,
        peak=max(forward, within, last) + model.buffers,
        forward=forward + model.buffers,
    )


def _count_message(trained: int, size: int, shards: int) -> int:
    return size * trained + FULL * (trained + trained // shards)


def _count_gradient_parts(micro: int) -> int:
    """The gradient of a tied embedding has two parts; from the third micro-batch on, their sum is a third."""
    return 2 if micro == 2 else 3  # noqa: PLR2004 - the second adds to what the first one left


def _count_optimizer_bytes(model: ModelSizes, optim: Optim, *, shards: int) -> int:
    return sum(
        count_state_bytes(optim, each.shape, hidden=each.hidden, shards=shards)
        for group in model.groups
        for each in _list_trained(group)
    )


def _list_trained(group: Sequence[TensorSize]) -> list[TensorSize]:
    return [each for each in group if each.trained]


def _count_numbers(group: Sequence[TensorSize]) -> int:
    return sum(prod(each.shape) for each in group)


def _count_bytes(group: Sequence[TensorSize], width: int | None = None) -> int:
    """Each number in its own type, or in one of this width."""
    return sum(round((width or each.width) * prod(each.shape)) for each in group)


def _count_shard(group: Sequence[TensorSize], shards: int) -> int:
    return sum(prod(_split_shape(each.shape, shards)) for each in group)


def _count_shard_bytes(group: Sequence[TensorSize], shards: int) -> int:
    return sum(round(each.width * prod(_split_shape(each.shape, shards))) for each in group)


def _split_shape(shape: tuple[int, ...], shards: int) -> tuple[int, ...]:
    """The shard of the rank with the most rows: rows are split evenly, and the last shards are smaller."""
    return (-(-shape[0] // shards), *shape[1:])
