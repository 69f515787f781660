"""The loss: cross-entropy summed in float32 over supervised tokens; `step.py` divides it by the count of the step."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from aboard.trainer.collate import IGNORED

# Rows of float32 logits at a time: what fits a core's cache, and few kernels on an accelerator.
_ELEMENTS = {"cpu": 1 << 20}
_ELEMENTS_ELSEWHERE = 1 << 26
# A probability below 6e-8 is 0 in float16: the stored gradient is this much larger, until backward applies the weight.
_STORED_FACTOR = {torch.float16: 2.0**15}


def compute_loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum over all labels except ignored ones, in float32.

    The gradient is computed along with it, a few rows at a time, so that the logits never exist in float32 as a whole.
    """
    apply: Callable[[Tensor, Tensor], Tensor] = _SummedCrossEntropy.apply
    return apply(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


class _SummedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        needs_gradient = ctx.needs_input_grad[0]
        slope = torch.empty_like(logits) if needs_gradient else None
        factor = _STORED_FACTOR.get(logits.dtype, 1.0)
        total = torch.zeros((), dtype=torch.float32, device=logits.device)
        counted = (labels != IGNORED)[:, None]
        places = labels.clamp(min=0)[:, None]
        rows = max(1, _ELEMENTS.get(logits.device.type, _ELEMENTS_ELSEWHERE) // logits.shape[-1])
        for at in range(0, len(logits), rows):
            part = slice(at, at + rows)
            logs = torch.log_softmax(logits[part], -1, dtype=torch.float32)
            # where(), since 0 times the inf of an ignored row would be nan.
            total -= torch.where(counted[part], logs.gather(1, places[part]), 0.0).sum()
            if slope is not None:
                chances = logs.exp_()
                # Made on the device: a copy from pageable memory would wait for it.
                chances.scatter_add_(1, places[part], chances.new_full((len(logs), 1), -1.0))
                chances.masked_fill_(~counted[part], 0.0)
                slope[part] = chances if factor == 1.0 else chances.mul_(factor)
        ctx.slope = slope
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor, None]:
        slope: Tensor = ctx.slope
        del ctx.slope
        return slope.mul_(weight / _STORED_FACTOR.get(slope.dtype, 1.0)), None
