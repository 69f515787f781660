"""AdamW in one pass over the gradients: it clips them, and skips a non-finite step, as it reads them."""

from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from aboard.trainer.optimizer.sharded_optimizer import ShardedOptimizer, get_local


class LocalAdamW(AdamW, ShardedOptimizer):
    """AdamW that passes this rank's local shards to the kernel: it is elementwise, so no other shards are needed.

    The default path goes through DTensor in Python for each tensor of each list.
    """

    def allocate_state(self, parameter: Tensor) -> dict[str, Tensor]:
        return {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        complex_numbers: bool = super()._init_group(group, *lists)  # type: ignore[no-untyped-call]
        for tensors in lists:
            tensors[:] = map(get_local, tensors)
        return complex_numbers
