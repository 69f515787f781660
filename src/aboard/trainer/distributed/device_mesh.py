"""The device mesh: one dimension of shards, or shards within each node and replicas across nodes."""

from typing import Literal

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from aboard.diagnoses import TrainerError
from aboard.trainer.diagnoses import training

ShardingKind = Literal["full", "hybrid", "none"]


def build_mesh(sharding: ShardingKind, slots: tuple[int, ...], *, device: torch.device) -> DeviceMesh | None:
    """The mesh of a sharding over nodes with this many ranks each; None if the model is replicated on every rank."""
    if sharding == "full":
        return init_device_mesh(device.type, (sum(slots),), mesh_dim_names=("shard",))
    if sharding == "hybrid":
        shape = (len(slots), require_even_ranks(slots))
        return init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
    return None


def require_even_ranks(slots: tuple[int, ...]) -> int:
    """The number of ranks that every node has; raises if they differ."""
    if len(set(slots)) > 1:
        counts = f"{', '.join(map(str, slots[:-1]))} and {slots[-1]}"
        seen = f"`sharding: hybrid` needs the same number of ranks on every node, but they have {counts}"
        raise TrainerError(training.SHARDING_UNEVEN, seen)
    return slots[0]


def list_ranks_per_node(local_sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks of each node, from the local size that each rank reported: ranks of a node are adjacent."""
    sizes: list[int] = []
    index = 0
    while index < len(local_sizes):
        sizes.append(local_sizes[index])
        index += local_sizes[index]
    return tuple(sizes)
