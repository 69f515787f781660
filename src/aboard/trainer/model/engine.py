"""A model that is ready to train: the wrapped model, the module to save, and what differs between layouts."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel

from aboard.lazy_dataclass import dataclass
from aboard.trainer.adapter.sample_dropout import DropoutKeys
from aboard.trainer.distributed.rank_context import RankContext


@dataclass(frozen=True, kw_only=True)
class Engine:
    """`model` is called, `module` is saved. Gradients are sums over all ranks of the loss times `loss_factor`."""

    model: torch.nn.Module
    module: PreTrainedModel
    world: RankContext
    parameters: tuple[torch.nn.Parameter, ...]
    loss_factor: float
    flops_per_token: float
    bytes_read: int
    notes: tuple[str, ...]
    dropout_keys: DropoutKeys | None
    # `model` returns the summed loss of its labels.
    chunked_loss: bool
    _switch: Callable[[bool], None]

    def micro(self, *, last: bool) -> None:
        """Called before the forward of a micro-batch: gradients are reduced only at the last one of a step."""
        self._switch(last)

    @torch.no_grad()
    def norm(self) -> torch.Tensor:
        """The norm of the full gradient over all ranks, where the gradients are, without a sync."""
        gradients = (each.grad for each in self.parameters)
        parts = [each.to_local() if isinstance(each, DTensor) else each for each in gradients if each is not None]
        # Tied weights are one parameter, so they count once.
        lengths = torch._foreach_norm(parts)  # noqa: SLF001 - what torch's own clip_grad_norm_ calls
        norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(lengths))
        if self.world.mesh is None:
            return norm
        # Over shards, not replicas: with hybrid, each node already has the full sum.
        total: torch.Tensor = norm.square()
        dist.all_reduce(total, group=self.world.mesh["shard"].get_group())
        return total.sqrt()


def make_sync_switch(model: torch.nn.Module, context: RankContext) -> Callable[[bool], None]:
    """Returns the switch for gradient reduction; switching to the current state is free."""
    if isinstance(model, DistributedDataParallel):
        return lambda last: setattr(model, "require_backward_grad_sync", last)
    shards = [each for each in model.modules() if isinstance(each, FSDPModule)]
    state = True

    def turn(last: bool) -> None:  # noqa: FBT001 - a switch
        nonlocal state
        if last == state:
            return
        state = last
        for shard in shards:
            # Unreduced gradients are replicated on every rank: if they don't fit, each micro-batch reduces.
            if context.hold:
                shard.set_requires_gradient_sync(last, recurse=False)
            if context.keep:
                shard.set_reshard_after_backward(last, recurse=False)

    return turn
