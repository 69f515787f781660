"""Builds the optimizer of a training run, and takes its steps."""

from collections.abc import Sequence
from math import prod
from typing import Any, assert_never

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from aboard.core.plan.training_settings import Optim, Training
from aboard.trainer.optimizer.adafactor import Adafactor
from aboard.trainer.optimizer.adamw import LocalAdamW
from aboard.trainer.optimizer.adamw_8bit import AdamW8bit, choose_block
from aboard.trainer.optimizer.muon import Muon
from aboard.trainer.optimizer.sharded_optimizer import ShardedOptimizer

FLOAT = 4


def build_optimizer(training: Training, module: PreTrainedModel) -> ShardedOptimizer:
    """Weight decay applies to matrices, not to norms and biases."""
    parameters = [each for each in module.parameters() if each.requires_grad]
    hidden = find_layer_matrices(module) if training.optim == "muon" else set()
    rate, decay = training.learning_rate, training.weight_decay
    groups: list[dict[str, Any]] = [
        {"params": [each for each in parameters if id(each) in hidden], "weight_decay": decay, "muon": True},
        {"params": [each for each in parameters if each.ndim > 1 and id(each) not in hidden], "weight_decay": decay},
        {"params": [each for each in parameters if each.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [{"muon": False, **group} for group in groups if group["params"]]
    betas, eps = (training.adam_beta1, training.adam_beta2), training.adam_epsilon
    if training.optim == "adafactor":
        return Adafactor(groups, lr=rate)
    if training.optim == "adamw_8bit":
        return AdamW8bit(groups, lr=rate, betas=betas, eps=eps)
    if training.optim == "muon":
        return Muon(groups, lr=rate, betas=betas, eps=eps, fused=True)
    if training.optim == "adamw":
        return LocalAdamW(groups, lr=rate, betas=betas, eps=eps, fused=True)
    assert_never(training.optim)


def find_layer_matrices(module: PreTrainedModel) -> set[int]:
    """The weights that Muon is for: all matrices but embeddings and the head, tied or not."""
    lookups = [each for each in module.modules() if isinstance(each, nn.Embedding)]
    head = module.get_output_embeddings()
    others = {id(weight) for each in (*lookups, *([head] if head is not None else [])) for weight in each.parameters()}
    return {id(each) for each in module.parameters() if each.ndim == 2} - others  # noqa: PLR2004 - a matrix


def clip_and_update_weights(
    optimizer: ShardedOptimizer,
    *,
    norm: Tensor,
    max_norm: float,
    learning_rate: float,
    loss_scale: Tensor | None = None,
) -> None:
    """One step with gradients of this norm, clipped to `max_norm` unless that is 0.

    With `loss_scale`, the gradients are that many times larger than what they stand for; the norm is not.
    If the norm isn't finite, nothing changes: neither weights nor the optimizer's state. All of it is decided on the
    device, by the fused kernels' contract for loss scaling (`torch.amp.GradScaler`): they divide and skip as they read.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    nonfinite = (~torch.isfinite(norm)).float()
    scale = ((norm + 1e-6) / max_norm).clamp(min=1.0) if max_norm > 0 else None
    if loss_scale is not None:
        scale = loss_scale if scale is None else scale * loss_scale
    optimizer.found_inf = nonfinite
    optimizer.grad_scale = scale
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def count_state_bytes(optim: Optim, shape: Sequence[int], *, hidden: bool, shards: int = 1) -> int:
    """The bytes of a parameter's state on the rank with the most rows; `hidden` if Muon is for it."""
    rows = -(-shape[0] // shards) if shape else 1
    numbers = rows * prod(shape[1:])
    if optim == "muon" and hidden:
        return FLOAT * numbers
    if optim == "adafactor":
        if len(shape) < 2:  # noqa: PLR2004 - norms and biases
            return FLOAT * numbers
        # The column factor of a matrix is on every rank; those of stacked matrices are sharded with them.
        stacked = prod((rows, *shape[1:-2])) if len(shape) > 2 else 1  # noqa: PLR2004 - as above
        return FLOAT * (numbers // shape[-1] + stacked * shape[-1])
    block = choose_block(shape) if optim == "adamw_8bit" else None
    return 2 * (FLOAT * numbers if block is None else numbers + FLOAT * numbers // block)
