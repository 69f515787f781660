"""The ranks as a grid: one line of shards, or a line within each node and copies across nodes."""

from typing import Literal

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from aboard.diagnoses import AboardError
from aboard.diagnoses.trainer import training

ShardingKind = Literal["full", "hybrid", "none"]


def build_mesh(sharding: ShardingKind, slots: tuple[int, ...], *, device: torch.device) -> DeviceMesh | None:
    """The grid of a sharding over nodes with so many ranks each; none where every rank holds all."""
    if sharding == "full":
        return init_device_mesh(device.type, (sum(slots),), mesh_dim_names=("shard",))
    if sharding == "hybrid":
        return init_device_mesh(
            device.type, (len(slots), require_even_ranks(slots)), mesh_dim_names=("replicate", "shard")
        )
    return None


def require_even_ranks(slots: tuple[int, ...]) -> int:
    """The number of ranks that every node has; refused where they differ."""
    if len(set(slots)) > 1:
        raise AboardError(
            training.SHARDING_UNEVEN,
            "`sharding: hybrid` needs the same number of ranks on every node, and here they are"
            f" {_format_numbers(slots)}",
        )
    return slots[0]


def list_ranks_per_node(local_sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks of each node, from what each rank has said: those of a node stand side by side."""
    sizes: list[int] = []
    index = 0
    while index < len(local_sizes):
        sizes.append(local_sizes[index])
        index += local_sizes[index]
    return tuple(sizes)


def _format_numbers(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
