"""This rank's context: its number, its device, and the sharding of the model."""

import os
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from socket import gethostname
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from aboard.core.plan.training_settings import Device, Training
from aboard.diagnoses import TrainerError
from aboard.diagnoses.untrusted import escape_text
from aboard.doctor.gpu import diagnoses as gpu
from aboard.lazy_dataclass import dataclass
from aboard.trainer.distributed.auto_sharding import choose_sharding
from aboard.trainer.distributed.device_mesh import ShardingKind, build_mesh, list_ranks_per_node
from aboard.trainer.memory.usable_memory import find_usable_memory

# Gloo takes up to five times this to give up on an unreachable peer (seen with torch 2.13): five minutes.
JOIN_TIMEOUT = timedelta(seconds=60)
# Afterwards, a rank may lag by the time it takes to read a large model from a slow disk.
COLLECTIVE_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """A rank's context; `sharding` is resolved here, and a world of one rank shards only to offload."""

    rank: int
    size: int
    local_rank: int
    device: torch.device
    sharding: ShardingKind
    mesh: DeviceMesh | None = None
    # Memory suffices for weights to stay gathered until their backward, and between micro-batches.
    keep: bool = False
    # Memory suffices for full gradients until the last micro-batch of a step, so that they are reduced once.
    hold: bool = False

    @property
    def main(self) -> bool:
        return self.rank == 0

    @property
    def distributed(self) -> bool:
        return self.size > 1


def join_process_group(training: Training) -> RankContext:
    """Joins the ranks given by torchrun's environment; without it, this process is the only rank."""
    rank, local_rank = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK"))
    size, local_size = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    device = _select_device(training.device, local_rank)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if training.tf32 else "highest")
    alone = RankContext(rank=rank, size=size, local_rank=local_rank, device=device, sharding="none")
    if not alone.distributed and not training.cpu_offload:
        return alone
    # Before NCCL has buffers.
    room = measure_memory(device, local_size)
    if not dist.is_initialized():
        _init_process_group(alone, offload=training.cpu_offload)
    local_sizes, room = _gather_limits(local_size, room, device)
    nodes = list_ranks_per_node(local_sizes)
    sharding, keep, hold = choose_sharding(training, nodes, room=room)
    spread = build_mesh(sharding, nodes, device=device)
    for group in [dist.group.WORLD, *(spread.get_all_groups() if spread else [])]:
        dist.distributed_c10d._set_pg_timeout(COLLECTIVE_TIMEOUT, group)  # noqa: SLF001 - torch has no public name for it
    return replace(alone, sharding=sharding, mesh=spread, keep=keep, hold=hold)


def _init_process_group(alone: RankContext, *, offload: bool) -> None:
    store: dict[str, Any] = {}
    if not alone.distributed:
        store = {"store": dist.HashStore(), "rank": 0, "world_size": 1}  # type: ignore[attr-defined] # torch documents it
    if alone.device.type != "cuda":
        dist.init_process_group("gloo", timeout=JOIN_TIMEOUT, **store)
    elif offload:
        # The norm of offloaded gradients is reduced on the CPU. A group of two backends can't be bound to a device.
        dist.init_process_group("cpu:gloo,cuda:nccl", timeout=JOIN_TIMEOUT, **store)
    else:
        # Bound at once: a collective then never guesses its device, and nccl connects here instead of in step 1.
        dist.init_process_group("nccl", timeout=JOIN_TIMEOUT, device_id=alone.device)


def leave_process_group(context: RankContext) -> None:
    if context.mesh is not None or (context.distributed and dist.is_initialized()):
        dist.destroy_process_group()


def _select_device(wanted: Device, local_rank: int) -> torch.device:
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        # The head has asked the driver; a variable or a container of the ranks may still hide the GPUs.
        raise TrainerError(
            gpu.CUDA, f"torch can't use this node's GPUs: {_describe_cuda_error()}", "look", node=gethostname()
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _describe_cuda_error() -> str:
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return escape_text(str(error).splitlines()[0], 300)
    return f"torch {torch.__version__} finds none; CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}"


def _gather_limits(local_size: int, room: int, device: torch.device) -> tuple[tuple[int, ...], int]:
    """The local size of each rank, and the smallest memory of any: the common input of all decisions."""
    mine = torch.tensor([local_size, room], dtype=torch.int64, device=device)
    tensors = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(tensors, mine)
    sizes, rooms = torch.stack(tensors).T.tolist()
    return tuple(sizes), min(rooms)


# The memory limit of a container, in cgroup v2 and v1; without one, "max" or a number above all memory.
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def measure_memory(device: torch.device, local_size: int) -> int:
    """Memory in bytes: a GPU's that no other process holds; ranks on a CPU share the host's memory evenly."""
    if device.type == "cuda":
        return find_usable_memory(*torch.cuda.mem_get_info(device))
    return _read_host_memory() // local_size


def _read_host_memory() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    total = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal"))
    limits = [total]
    for name in CGROUP_LIMITS:
        with suppress(OSError, ValueError):
            limits.append(int(Path(name).read_text(encoding="ascii")))
    return min(limits)
