"""The slices of the training state that a rank holds, and which ranks hold the same ones."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Replicate, Shard

from aboard.diagnoses import TrainerError
from aboard.lazy_dataclass import dataclass
from aboard.trainer.checkpoint.commit_marker import Box, TensorSpec
from aboard.trainer.diagnoses import checkpoint
from aboard.trainer.weights.safetensors_writer import DTYPE_NAMES


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorSlice:
    """One slice on this rank; `holders` are all ranks with the same slice."""

    name: str
    whole: TensorSpec
    box: Box
    holders: tuple[int, ...]
    local: Tensor

    @property
    def bytes(self) -> int:
        return self.local.numel() * self.local.element_size()


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredTensors:
    """A module's tensors by storage name, and the aliases of tied ones."""

    tensors: dict[str, Tensor]
    ties: dict[str, str]


def collect_tensors(module: nn.Module) -> StoredTensors:
    """Parameters and persistent buffers; tied ones once, so that a head can't be restored untied.

    With an adapter, only what is trained: all else comes from the base model's files.
    """
    adapted = any(not each.requires_grad for each in module.parameters())
    tensors: dict[str, Tensor] = {}
    ties: dict[str, str] = {}
    first: dict[int, str] = {}
    # `state_dict`, not `named_parameters`: its hooks reshard FSDP2's parameters.
    for name, tensor in module.state_dict(keep_vars=True).items():
        if adapted and not tensor.requires_grad:
            continue
        if id(tensor) in first:
            ties[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
            tensors[name] = tensor
    return StoredTensors(tensors=tensors, ties=ties)


def slice_model(stored: StoredTensors, world: int) -> list[TensorSlice]:
    return [slice_tensor(f"model/{name}", tensor, world) for name, tensor in stored.tensors.items()]


def slice_optimizer(stored: StoredTensors, optimizer: torch.optim.Optimizer, world: int) -> list[TensorSlice]:
    """Optimizer state by parameter name, so that any other layout can restore it."""
    tensor_names = {id(tensor): name for name, tensor in stored.tensors.items()}
    slices = []
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if not isinstance(value, Tensor):
                raise TrainerError(
                    checkpoint.STATE,
                    f"the optimizer's {key} for {tensor_names[id(parameter)]} is a {type(value).__name__},"
                    " not a tensor",
                )
            slices.append(slice_tensor(f"optimizer/{tensor_names[id(parameter)]}/{key}", value, world))
    return slices


def slice_tensor(name: str, tensor: Tensor, world: int) -> TensorSlice:
    """The position of this rank's part in the whole tensor; an ordinary tensor is replicated on all ranks."""
    whole = TensorSpec(dtype=DTYPE_NAMES[tensor.dtype], shape=tuple(tensor.shape))
    if not isinstance(tensor, DTensor):
        box = (0,) * tensor.ndim, tuple(tensor.shape)
        return TensorSlice(name=name, whole=whole, box=box, holders=tuple(range(world)), local=tensor.detach())
    with torch.no_grad():
        local = tensor.to_local()
    box, holders = _locate_shard(name, tensor)
    return TensorSlice(name=name, whole=whole, box=box, holders=holders, local=local)


def _locate_shard(name: str, tensor: DTensor) -> tuple[Box, tuple[int, ...]]:
    """DTensor shards from the first mesh dimension to the last, each into chunks as torch.chunk does."""
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise RuntimeError(f"this rank is not in the mesh of {name}")
    start, size = [0] * tensor.ndim, list(tensor.shape)
    index: list[int | slice] = []
    for at, parts, placement in zip(coordinate, mesh.shape, tensor.placements, strict=True):
        # Exactly these types: a strided shard is a Shard too, but placed differently.
        if type(placement) is Shard:
            dim = placement.dim % tensor.ndim
            chunk = -(-size[dim] // parts)
            low = min(at * chunk, size[dim])
            start[dim], size[dim] = start[dim] + low, min(chunk, size[dim] - low)
            index.append(at)
        elif type(placement) is Replicate:
            index.append(slice(None))
        else:
            raise TrainerError(checkpoint.LAYOUT, f"{name} is placed as {placement}, which checkpoints don't support")
    return (tuple(start), tuple(size)), tuple(mesh.mesh[tuple(index)].flatten().tolist())


def select_own_slices(slices: Iterable[TensorSlice], rank: int, disk: frozenset[int]) -> Iterator[TensorSlice]:
    """The slices that this rank writes: ranks with equal slices on one disk share the work evenly.

    All see the same slices in the same order, so they agree without communication.
    """
    loads: dict[tuple[int, ...], dict[int, int]] = defaultdict(dict)
    for each in slices:
        writers = tuple(holder for holder in each.holders if holder in disk)
        load = loads[writers]
        least = min(writers, key=lambda writer: (load.get(writer, 0), writer))
        load[least] = load.get(least, 0) + each.bytes
        if least == rank and each.local.numel():
            yield each
