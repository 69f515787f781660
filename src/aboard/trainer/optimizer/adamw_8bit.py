"""AdamW whose moments take a byte each: the blockwise quantization of https://arxiv.org/abs/2110.02861."""

from collections.abc import Iterable, Sequence
from functools import cache
from math import gcd, prod
from typing import Any

import torch
from torch import Tensor

from aboard.trainer.optimizer.sharded_optimizer import ShardedOptimizer, allocate_rows, get_local

BLOCK = 256
# Rows that only smaller blocks divide stay in float32, and so do small tensors, as in bitsandbytes and torchao.
SMALLEST_BLOCK = 16
SMALLEST_TENSOR = 4096
# Numbers that are updated at a time: temporary memory is a few times this.
CHUNK = 1 << 24
# The first moment has a sign, the second has none.
MOMENTS = {"exp_avg": True, "exp_avg_sq": False}


class AdamW8bit(ShardedOptimizer):
    """Blocks never cross a row: shards are rows, so that states and losses don't depend on the sharding."""

    def __init__(self, groups: Iterable[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    def allocate_state(self, parameter: Tensor) -> dict[str, Tensor]:
        state = {"step": torch.zeros((), device=parameter.device)}
        block = choose_block(parameter.shape)
        for name in MOMENTS:
            if block is None:
                state[name] = torch.zeros_like(parameter, requires_grad=False)
            else:
                *rows, columns = parameter.shape
                state[name] = allocate_rows(parameter, parameter.shape, torch.uint8)
                state[f"{name}_scale"] = allocate_rows(parameter, (*rows, columns // block))
        return state

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            for parameter in self.list_trained(group):
                state = {name: get_local(each) for name, each in self.state[parameter].items()}
                keep = self.read_keep(parameter.device)
                state["step"] += keep
                weights, gradient = get_local(parameter), self.read_gradient(parameter)
                step = state.pop("step").clamp(min=1.0)
                if weights.ndim == 0:
                    weights, gradient, *_ = weights.view(1), gradient.view(1)
                    state = {name: each.view(1) for name, each in state.items()}
                rows = max(1, CHUNK // max(1, prod(weights.shape[1:])))
                parts = [each.split(rows) for each in (weights, gradient, *state.values())]
                for weights_part, gradient_part, *state_parts in zip(*parts, strict=True):
                    moments = dict(zip(state, state_parts, strict=True))
                    _update_rows(weights_part, gradient_part, moments, group=group, step=step, keep=keep)


def _update_rows(
    weights: Tensor, gradient: Tensor, moments: dict[str, Tensor], *, group: dict[str, Any], step: Tensor, keep: Tensor
) -> None:
    beta1, beta2 = group["betas"]
    first = _read_moment("exp_avg", moments).lerp(gradient, 1 - beta1)
    second = _read_moment("exp_avg_sq", moments).lerp(gradient.square(), 1 - beta2)
    _write_moment("exp_avg", moments, first, keep)
    _write_moment("exp_avg_sq", moments, second, keep)
    rate = group["lr"]
    weights.mul_(1.0 - rate * group["weight_decay"] * keep)
    size = second.sqrt_().div_((1 - beta2**step).sqrt()).add_(group["eps"])
    change = first.div_(size).mul_(rate / (1 - beta1**step))
    weights.sub_(change.masked_fill_(keep == 0, 0.0))


def _read_moment(name: str, moments: dict[str, Tensor]) -> Tensor:
    codes, scale = moments[name], moments.get(f"{name}_scale")
    if scale is None:
        return codes
    numbers = build_map(signed=MOMENTS[name], device=codes.device)[codes.int()]
    return _split_blocks(numbers, scale).mul_(scale.unsqueeze(-1)).view(codes.shape)


def _write_moment(name: str, moments: dict[str, Tensor], value: Tensor, keep: Tensor) -> None:
    codes, scale = moments[name], moments.get(f"{name}_scale")
    if scale is None:
        codes.lerp_(value, keep)
        return
    blocks = _split_blocks(value, scale)
    largest = blocks.abs().amax(-1).clip(1e-12)
    numbers = build_map(signed=MOMENTS[name], device=codes.device)
    scaled = (blocks / largest.unsqueeze(-1)).view(value.shape)
    # The nearest number of the map: one more for each middle that is not above.
    nearest = torch.bucketize(scaled, (numbers[1:] + numbers[:-1]) / 2, right=True, out_int32=True)
    # A skipped step keeps the codes themselves: a block that is quantized again may differ.
    codes.copy_(torch.where(keep > 0, nearest.to(torch.uint8), codes))
    scale.lerp_(largest, keep)


def _split_blocks(value: Tensor, scale: Tensor) -> Tensor:
    return value.view(*scale.shape, value.shape[-1] // scale.shape[-1])


def choose_block(shape: Sequence[int]) -> int | None:
    """The numbers of a row that share a scale; None if the moments stay in float32."""
    if len(shape) < 2 or prod(shape) < SMALLEST_TENSOR:  # noqa: PLR2004 - norms and biases
        return None
    block = gcd(shape[-1], BLOCK)
    return block if block >= SMALLEST_BLOCK else None


@cache
def build_map(*, signed: bool, device: torch.device) -> Tensor:
    """The 256 numbers that codes stand for: dense near 0 and near 1, over seven orders of magnitude."""
    numbers = [0.0, 1.0]
    for order in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (order + (not signed)) + 1)
        middles = ((edges[:-1] + edges[1:]) / 2.0 * 10.0 ** (order - 6)).tolist()
        numbers += [*middles, *(-each for each in middles if signed)]
    return torch.tensor(sorted(numbers), device=device)
