"""The ranks as a grid: one line of shards, or a line within each node and copies across nodes."""

from typing import Literal

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from aboard.diagnoses import AboardError, training

Spread = Literal["full", "hybrid", "none"]


def mesh(sharding: Spread, slots: tuple[int, ...], *, device: torch.device) -> DeviceMesh | None:
    """The grid of a sharding over nodes with so many ranks each; none where every rank holds all."""
    if sharding == "full":
        return init_device_mesh(device.type, (sum(slots),), mesh_dim_names=("shard",))
    if sharding == "hybrid":
        return init_device_mesh(device.type, (len(slots), even(slots)), mesh_dim_names=("replicate", "shard"))
    return None


def even(slots: tuple[int, ...]) -> int:
    """The number of ranks that every node has; refused where they differ."""
    if len(set(slots)) > 1:
        raise AboardError(
            training.SHARDING_UNEVEN,
            f"`sharding: hybrid` needs the same number of ranks on every node, and here they are {_listed(slots)}",
        )
    return slots[0]


def nodes(local_sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks of each node, from what each rank has said: those of a node stand side by side."""
    found: list[int] = []
    index = 0
    while index < len(local_sizes):
        found.append(local_sizes[index])
        index += local_sizes[index]
    return tuple(found)


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
