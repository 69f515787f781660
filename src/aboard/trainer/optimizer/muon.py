"""Muon (https://kellerjordan.github.io/posts/muon/) for the matrices of the layers, AdamW for all other weights."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from aboard.trainer.optimizer.adamw import LocalAdamW
from aboard.trainer.optimizer.sharded_optimizer import find_shard_group, get_local

# As in torch.optim.Muon.
MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
EPSILON = 1e-7


class Muon(LocalAdamW):
    """Groups with `muon` set have an orthogonalized update, scaled to the size of AdamW's, so that one rate serves."""

    def allocate_state(self, parameter: Tensor) -> dict[str, Tensor]:
        if any(each is parameter for group in self.param_groups if group["muon"] for each in group["params"]):
            return {"momentum_buffer": torch.zeros_like(parameter, requires_grad=False)}
        return super().allocate_state(parameter)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            if group["muon"]:
                self._update_matrices(group)

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        """Leaves AdamW nothing to do for Muon's groups."""
        return False if group["muon"] else super()._init_group(group, *lists)

    def _update_matrices(self, group: dict[str, Any]) -> None:
        parameters = self.list_trained(group)
        if not parameters:
            return
        keep = self.read_keep(parameters[0].device)
        updates = []
        for each in parameters:
            gradient, momentum = self.read_gradient(each), get_local(self.state[each]["momentum_buffer"])
            momentum.lerp_(gradient, (1 - MOMENTUM) * keep)
            updates.append(gradient.lerp_(momentum, MOMENTUM))
        _orthogonalize_all(parameters, updates)
        rate = group["lr"]
        for each, update in zip(parameters, updates, strict=True):
            weights = get_local(each)
            weights.mul_(1.0 - rate * group["weight_decay"] * keep)
            # The root mean square of AdamW's updates (https://arxiv.org/abs/2502.16982, section 2.2).
            weights.sub_(update.mul_(rate * 0.2 * max(each.shape) ** 0.5 * keep))


def _orthogonalize_all(parameters: list[Tensor], updates: list[Tensor]) -> None:
    """In place. Ranks with shards share the work: each gathers every n-th matrix, and sends the parts back.

    Parts are sent in bfloat16, which is what the iteration computes in.
    """
    shards = find_shard_group(parameters)
    if shards is None:
        for update in updates:
            update.copy_(_orthogonalize(update.bfloat16()))
        return
    ranks, own = dist.get_world_size(shards), dist.get_rank(shards)
    # Matrices of one shape take equally long.
    order = sorted(range(len(parameters)), key=lambda number: tuple(parameters[number].shape))
    for start in range(0, len(order), ranks):
        batch = order[start : start + ranks]
        parts = [updates[number] for number in batch]
        sent = [part.numel() for part in parts] + [0] * (ranks - len(batch))
        shape = parameters[batch[own]].shape if own < len(batch) else torch.Size((0, 0))
        got = [rows * shape[1] for rows in _split_rows(shape[0], ranks)]
        flat = torch.cat([part.reshape(-1) for part in parts]).bfloat16()
        whole = flat.new_empty(sum(got))
        dist.all_to_all_single(whole, flat, got, sent, group=shards)
        if shape.numel():
            whole = _orthogonalize(whole.view(shape)).reshape(-1)
        dist.all_to_all_single(flat, whole, sent, got, group=shards)
        for part, done in zip(parts, flat.split(sent), strict=False):
            part.copy_(done.view(part.shape))


def _split_rows(rows: int, ranks: int) -> list[int]:
    """The rows of each rank, as DTensor splits them."""
    chunk = -(-rows // ranks)
    return [max(0, min(chunk, rows - rank * chunk)) for rank in range(ranks)]


def _orthogonalize(matrix: Tensor) -> Tensor:
    """The nearest orthogonal matrix, roughly, by Newton-Schulz iterations in bfloat16."""
    a, b, c = COEFFICIENTS
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    wide = wide / wide.norm().clamp(min=EPSILON)
    for _ in range(ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if matrix.shape[0] > matrix.shape[1] else wide
