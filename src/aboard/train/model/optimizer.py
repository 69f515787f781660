"""AdamW in one pass over the gradients: it clips them, and skips a non-finite step, as it reads them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from aboard.core.plan.training_settings import Training


def build_optimizer(training: Training, module: nn.Module) -> torch.optim.Optimizer:
    """Weight decay applies to matrices, not to norms and biases."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [each for each in parameters if each.ndim > 1], "weight_decay": training.weight_decay},
        {"params": [each for each in parameters if each.ndim <= 1], "weight_decay": 0.0},
    ]
    return _LocalAdamW(
        [group for group in groups if group["params"]],
        lr=training.learning_rate,
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        fused=True,
    )


def clip_and_update_weights(
    optimizer: torch.optim.Optimizer,
    *,
    norm: Tensor,
    max_norm: float,
    learning_rate: float,
    loss_scale: Tensor | None = None,
) -> None:
    """One step with gradients of this norm, clipped to `max_norm` unless that is 0.

    With `loss_scale`, the gradients are that many times larger than what they stand for; the norm is not.
    If the norm isn't finite, nothing changes: neither weights nor the optimizer's state. All of it is decided on the
    device, with the fused kernel's support for loss scaling (`torch.amp.GradScaler`): it divides and skips as it reads.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    nonfinite = (~torch.isfinite(norm)).float()
    scale = ((norm + 1e-6) / max_norm).clamp(min=1.0) if max_norm > 0 else None
    if loss_scale is not None:
        scale = loss_scale if scale is None else scale * loss_scale
    optimizer.found_inf = nonfinite  # type: ignore[attr-defined]
    optimizer.grad_scale = scale  # type: ignore[attr-defined]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


class _LocalAdamW(AdamW):
    """AdamW that passes this rank's local shards to the kernel: it is elementwise, so no other shards are needed.

    The default path goes through DTensor in Python for each tensor of each list.
    """

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        complex_numbers: bool = super()._init_group(group, *lists)  # type: ignore[no-untyped-call]
        for tensors in lists:
            tensors[:] = [each.to_local() if isinstance(each, DTensor) else each for each in tensors]
        return complex_numbers
