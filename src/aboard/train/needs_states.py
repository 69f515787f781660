"""What a model's states take on one rank: weights, gradients, optimizer, and what comes and goes while they are used.

Weights and gradients are kept in fp32, and Adam has two numbers more for each. What comes and goes is what was measured
with torch 2.13 (tests/train/test_model_needs.py); each figure says where it is from.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from aboard.lazy import dataclass

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FULL, HALF = 4, 2


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers of a model: the shapes of what is gathered together, the root's first, then each layer's."""

    groups: tuple[tuple[tuple[int, ...], ...], ...]
    embedding: int
    tied: bool
    multiplied: int
    buffers: int

    @property
    def total(self) -> int:
        return sum(map(_numbers, self.groups))


@dataclass(frozen=True, kw_only=True)
class States:
    """In bytes: three that stay, the most of all together, and what there is while activations are at their most."""

    weights: int
    gradients: int
    optimizer: int
    peak: int
    forward: int


def sizes(model: "PreTrainedModel", layers: Sequence[nn.Module]) -> Sizes:
    seen: set[int] = set()
    groups = []
    for module in (*layers, model):
        own = [each for each in module.parameters() if id(each) not in seen]
        seen |= set(map(id, own))
        groups.append(tuple(tuple(each.shape) for each in own))
    lookup = {id(each): each.numel() for each in model.get_input_embeddings().parameters()}
    head = model.get_output_embeddings()
    tied = head is not None and any(id(each) in lookup for each in head.parameters())
    matrices = {id(each): each.numel() for each in model.parameters() if each.dim() > 1}
    return Sizes(
        groups=(groups[-1], *groups[:-1]),
        embedding=sum(lookup.values()),
        tied=tied,
        multiplied=sum(matrices.values()) - (0 if tied else sum(lookup.values())),
        buffers=sum(each.nbytes for each in model.buffers()),
    )


def replicated(its: Sizes, *, half: bool, micro: int, ranks: int) -> States:
    """Every rank has all. DDP's buckets hold the gradients, from the start; while they aren't reduced, beside them."""
    total = its.total
    stays = FULL * total * 3
    buckets = FULL * total if ranks > 1 else 0
    before = FULL * total if micro > 1 else 0
    copies = HALF * its.multiplied if half else 0
    beside = ranks > 1 or micro > 1
    parts = FULL * its.embedding * (_parts(micro) if its.tied and beside else 2 * its.tied or int(beside))
    after = 0 if buckets or before else FULL * total
    peak = stays + buckets + before + max(copies, after + parts)
    return States(
        weights=FULL * total,
        gradients=(buckets + before) or FULL * total,
        optimizer=2 * FULL * total,
        peak=peak + its.buffers,
        forward=stays + buckets + before + copies + its.buffers,
    )


def sharded(its: Sizes, *, shards: int, replicas: int, half: bool, micro: int, keep: bool, hold: bool) -> States:
    """FSDP: a rank has its part, and gathers the rest a layer at a time; the root's own stay gathered throughout."""
    size = HALF if half else FULL
    accumulated = micro > 1
    total, root = its.total, _numbers(its.groups[0])
    layer = max(map(_numbers, its.groups[1:]), default=0)
    part = sum(_part(group, shards) for group in its.groups)
    roots = _part(its.groups[0], shards)
    stays = 3 * FULL * part
    # Between micro-batches, what was reduced within a node waits for the other nodes' part.
    deferred = FULL * (part - roots) if replicas > 1 and not hold and micro > (2 if keep else 1) else 0
    before = (FULL * total if hold else FULL * part + deferred) if accumulated else 0
    # What the head's gradient waits in, until the root's is whole.
    head = size * its.embedding
    # A layer's gradients: in the compute type, as a message in fp32, and reduced.
    message = size * layer + FULL * (layer + layer // shards)
    added = keep and hold and accumulated and not half
    if added:
        # What is accumulated is of the type that is sent: new gradients are added to it, and go out from there.
        gathered = stays + before + size * total
        forward = gathered + head
        within = max(gathered + head * (_parts(micro) if its.tied else 1), gathered + message - size * layer)
    elif keep:
        forward = stays + before + size * total + head
        within = forward + message
    else:
        # One layer that is in use, the next one on its way, and the message that it comes in.
        forward = stays + before + size * (root + 3 * layer) + head
        # While gradients of an earlier one are reduced, the next layer is on its way as well.
        ahead = size * layer if accumulated and not hold and replicas == 1 else 0
        within = stays + max(before, FULL * (part - roots)) + size * (root + layer) + ahead + head + message
    # The root's gradients come last. Between micro-batches, weights that are kept are all there by then.
    last = stays + (FULL * part + deferred if accumulated else FULL * (part - roots))
    last += FULL * (root + root // shards)
    if keep and accumulated:
        last += size * total + (0 if added else size * root + head)
    elif half:
        # Its weights are still gathered, beside their gradients.
        last += 2 * size * root + head
    else:
        last += size * root + head * (2 if its.tied else 1)
    return States(
        weights=FULL * part,
        gradients=FULL * part,
        optimizer=2 * FULL * part,
        peak=max(forward, within, last) + its.buffers,
        forward=forward + its.buffers,
    )


def _parts(micro: int) -> int:
    """The gradient of a tied embedding comes in two parts; from the third micro-batch on, their sum is one more."""
    return 2 if micro == 2 else 3  # noqa: PLR2004 - the second adds to what the first one left


def _numbers(group: Sequence[Sequence[int]]) -> int:
    return sum(_product(shape) for shape in group)


def _part(group: Sequence[Sequence[int]], shards: int) -> int:
    """Of the rank that has the most: rows are cut in even parts, and the last ones are short."""
    return sum(-(-shape[0] // shards) * _product(shape[1:]) for shape in group)


def _product(shape: Sequence[int]) -> int:
    result = 1
    for each in shape:
        result *= each
    return result
