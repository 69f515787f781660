"""Adafactor as transformers has it with a given learning rate: no momentum, and a factored second moment."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from aboard.lazy_dataclass import dataclass
from aboard.trainer.optimizer.sharded_optimizer import ShardedOptimizer, allocate_rows, find_shard_group, get_local

# Of transformers.optimization.Adafactor: decay_rate, eps[0] and clip_threshold.
DECAY = -0.8
EPSILON = 1e-30
THRESHOLD = 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class _Update:
    """A parameter in a step; `sums` are its column sums and the sum of its row factors, over this rank's rows."""

    parameter: Tensor
    gradient: Tensor
    state: dict[str, Tensor]
    share: Tensor
    decay: float
    sums: tuple[Tensor, ...]

    @property
    def factored(self) -> bool:
        return self.gradient.ndim > 1


class Adafactor(ShardedOptimizer):
    """Statistics of whole matrices need the rows of all ranks: two all-reduces per step, for all matrices together."""

    def __init__(self, groups: Iterable[dict[str, Any]], *, lr: float) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})

    def allocate_state(self, parameter: Tensor) -> dict[str, Tensor]:
        step = torch.zeros((), device=parameter.device)
        if parameter.ndim <= 1:
            return {"step": step, "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False)}
        *stacked, rows, columns = parameter.shape
        return {
            "step": step,
            "exp_avg_sq_row": allocate_rows(parameter, (*stacked, rows)),
            # Stacked matrices (experts) are sharded as a whole; one matrix is sharded by its rows.
            "exp_avg_sq_col": allocate_rows(parameter, (*stacked, columns))
            if stacked
            else torch.zeros(columns, device=parameter.device),
        }

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        del closure
        trained = [(group, each) for group in self.param_groups for each in self.list_trained(group)]
        if not trained:
            return
        shards = find_shard_group([each for _, each in trained])
        keep = self.read_keep(trained[0][1].device)
        rate = self.param_groups[0]["lr"]
        updates = [self._begin(each, keep, rate * group["weight_decay"]) for group, each in trained]
        sums = _sum_over(shards, [each for update in updates for each in update.sums])
        at = 0
        for update in updates:
            _precondition(update, sums[at : at + len(update.sums)])
            at += len(update.sums)
        squares = _sum_over(shards, [update.gradient.square().sum() for update in updates])
        for update, total in zip(updates, squares, strict=True):
            size = (total / update.parameter.numel()).sqrt() / THRESHOLD
            weights = get_local(update.parameter)
            weights.mul_(1.0 - update.decay * keep)
            change = update.gradient.mul_(rate / size.clamp(min=1.0))
            # Zero squares give no finite factor: a skipped first step has them.
            weights.sub_(change.masked_fill_(keep == 0, 0.0))

    def _begin(self, parameter: Tensor, keep: Tensor, decay: float) -> _Update:
        """Updates what this rank's rows suffice for."""
        gradient, state = self.read_gradient(parameter), self.state[parameter]
        state["step"] += keep
        share = state["step"].clamp(min=1.0).pow(DECAY) * keep
        squares = gradient.square().add_(EPSILON)
        sums: tuple[Tensor, ...] = ()
        if gradient.ndim <= 1:
            get_local(state["exp_avg_sq"]).lerp_(squares, share)
        else:
            rows = get_local(state["exp_avg_sq_row"]).lerp_(squares.mean(-1), share)
            if gradient.ndim == 2:  # noqa: PLR2004 - a matrix
                sums = (squares.sum(-2), rows.sum())
            else:
                get_local(state["exp_avg_sq_col"]).lerp_(squares.mean(-2), share)
        return _Update(parameter=parameter, gradient=gradient, state=state, share=share, decay=decay, sums=sums)


def _precondition(update: _Update, sums: Sequence[Tensor]) -> None:
    """Divides the gradient by the root of its second moment, in place."""
    if not update.factored:
        update.gradient.mul_(get_local(update.state["exp_avg_sq"]).rsqrt())
        return
    rows, columns = get_local(update.state["exp_avg_sq_row"]), get_local(update.state["exp_avg_sq_col"])
    if sums:
        count = update.parameter.shape[0]
        columns.lerp_(sums[0] / count, update.share)
        mean = sums[1] / count
    else:
        mean = rows.mean(-1, keepdim=True)
    update.gradient.mul_((rows / mean).rsqrt_().unsqueeze(-1)).mul_(columns.rsqrt().unsqueeze(-2))


def _sum_over(shards: dist.ProcessGroup | None, parts: list[Tensor]) -> list[Tensor]:
    """The sums of all ranks with shards, by one collective."""
    if shards is None or not parts:
        return parts
    flat = torch.cat([each.reshape(-1) for each in parts])
    dist.all_reduce(flat, group=shards)
    sums = flat.split([each.numel() for each in parts])
    return [total.view(each.shape) for total, each in zip(sums, parts, strict=True)]
