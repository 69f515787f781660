"""What a rank holds of a training's state: which slice of which tensor, and who else holds the very same one."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Replicate, Shard

from aboard.diagnoses import AboardError, checkpoint
from aboard.lazy import dataclass
from aboard.train.marker import Box, Whole

# As safetensors names them.
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Held:
    """One slice on this rank; `holders` are all ranks that hold the same."""

    name: str
    whole: Whole
    box: Box
    holders: tuple[int, ...]
    local: Tensor

    @property
    def bytes(self) -> int:
        return self.local.numel() * self.local.element_size()


@dataclass(frozen=True, kw_only=True, eq=False)
class Names:
    """A module's tensors by the name that each is stored under, and the other names of those that have several."""

    tensors: dict[str, Tensor]
    ties: dict[str, str]


def names(module: nn.Module) -> Names:
    """Parameters and persistent buffers; tied ones once, so that a head can't come back untied."""
    tensors: dict[str, Tensor] = {}
    ties: dict[str, str] = {}
    first: dict[int, str] = {}
    # `state_dict` and not `named_parameters`: its hooks bring FSDP2's parameters back to their shards.
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) in first:
            ties[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
            tensors[name] = tensor
    return Names(tensors=tensors, ties=ties)


def model_state(named: Names, world: int) -> list[Held]:
    return [held(f"model/{name}", tensor, world) for name, tensor in named.tensors.items()]


def optimizer_state(named: Names, optimizer: torch.optim.Optimizer, world: int) -> list[Held]:
    """By the names of the parameters, so that any other layout finds its own again."""
    known = {id(tensor): name for name, tensor in named.tensors.items()}
    found = []
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if not isinstance(value, Tensor):
                raise AboardError(
                    checkpoint.STATE,
                    f"the optimizer's {key} of {known[id(parameter)]} is a {type(value).__name__}, not a tensor",
                )
            found.append(held(f"optimizer/{known[id(parameter)]}/{key}", value, world))
    return found


def held(name: str, tensor: Tensor, world: int) -> Held:
    """Where this rank's part of a tensor lies in the whole; an ordinary tensor is the same on all ranks."""
    whole = Whole(dtype=DTYPES[tensor.dtype], shape=tuple(tensor.shape))
    if not isinstance(tensor, DTensor):
        box = (0,) * tensor.ndim, tuple(tensor.shape)
        return Held(name=name, whole=whole, box=box, holders=tuple(range(world)), local=tensor.detach())
    with torch.no_grad():
        local = tensor.to_local()
    box, holders = _place(name, tensor)
    return Held(name=name, whole=whole, box=box, holders=holders, local=local)


def _place(name: str, tensor: DTensor) -> tuple[Box, tuple[int, ...]]:
    """DTensor cuts from the first mesh dimension to the last, each into chunks as torch.chunk does."""
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise RuntimeError(f"this rank isn't in the mesh of {name}")
    start, size = [0] * tensor.ndim, list(tensor.shape)
    index: list[int | slice] = []
    for at, parts, placement in zip(coordinate, mesh.shape, tensor.placements, strict=True):
        # Exactly these: a strided shard is a Shard too, and lies elsewhere.
        if type(placement) is Shard:
            dim = placement.dim % tensor.ndim
            chunk = -(-size[dim] // parts)
            low = min(at * chunk, size[dim])
            start[dim], size[dim] = start[dim] + low, min(chunk, size[dim] - low)
            index.append(at)
        elif type(placement) is Replicate:
            index.append(slice(None))
        else:
            raise AboardError(checkpoint.LAYOUT, f"{name} is placed as {placement}, which checkpoints don't know")
    return (tuple(start), tuple(size)), tuple(mesh.mesh[tuple(index)].flatten().tolist())


def own(slices: Iterable[Held], rank: int, disk: frozenset[int]) -> Iterator[Held]:
    """The slices that this rank writes: of those that write the same onto one disk, each takes an equal share.

    All of them see the same slices in the same order, so they agree without a word.
    """
    loads: dict[tuple[int, ...], dict[int, int]] = defaultdict(dict)
    for each in slices:
        writers = tuple(holder for holder in each.holders if holder in disk)
        load = loads[writers]
        least = min(writers, key=lambda writer: (load.get(writer, 0), writer))
        load[least] = load.get(least, 0) + each.bytes
        if least == rank and each.local.numel():
            yield each
