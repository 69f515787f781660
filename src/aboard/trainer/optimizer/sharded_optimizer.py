"""What optimizers have in common: clipping and skipping on the device, and states that say how they are sharded."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor


class ShardedOptimizer(torch.optim.Optimizer):
    """Reads `grad_scale` and `found_inf` as torch's fused kernels do: gradients are divided, or the step is skipped."""

    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def allocate_state(self, parameter: Tensor) -> dict[str, Tensor]:
        """The first state of a parameter; a checkpoint of any layout can be read into it."""
        raise NotImplementedError

    def list_trained(self, group: dict[str, object]) -> list[Tensor]:
        """The parameters of a group that have a gradient; allocates their state."""
        parameters: list[Tensor] = [each for each in group["params"] if each.grad is not None]  # type: ignore[attr-defined]
        for each in parameters:
            if not self.state[each]:
                self.state[each] = self.allocate_state(each)
        return parameters

    def read_gradient(self, parameter: Tensor) -> Tensor:
        """This rank's part, clipped in place; zeros in a step that is skipped, so that what follows stays finite."""
        if parameter.grad is None:
            raise RuntimeError("only parameters with a gradient are updated")
        gradient = get_local(parameter.grad)
        if self.grad_scale is not None:
            gradient.div_(self.grad_scale)
        return gradient if self.found_inf is None else gradient.masked_fill_(self.found_inf > 0, 0.0)

    def read_keep(self, device: torch.device) -> Tensor:
        """1, or 0 in a step that is skipped: a factor of every change, so that nobody waits for the device."""
        return torch.ones((), device=device) if self.found_inf is None else 1.0 - self.found_inf


def get_local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def find_shard_group(parameters: Sequence[Tensor]) -> ProcessGroup | None:
    """The ranks that hold one copy of the weights together; None if each rank has all of them."""
    sharded = [each for each in parameters if isinstance(each, DTensor)]
    if len(sharded) not in {0, len(parameters)}:
        raise RuntimeError("some trained weights are sharded and some are not: sums over ranks would be wrong")
    return sharded[0].device_mesh["shard"].get_group() if sharded else None


def allocate_rows(parameter: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros whose first dimension is that of the parameter, and is sharded in the same way."""
    if not isinstance(parameter, DTensor):
        return torch.zeros(*shape, dtype=dtype, device=parameter.device)
    local = torch.zeros(parameter.to_local().shape[0], *shape[1:], dtype=dtype, device=parameter.to_local().device)
    stride = torch.empty(*shape, device="meta").stride()
    rows = DTensor.from_local(
        local, parameter.device_mesh, parameter.placements, run_check=False, shape=torch.Size(shape), stride=stride
    )
    # Offloaded weights are in host memory, and from_local moves tensors to the device of the mesh.
    return rows.to(parameter.device)
