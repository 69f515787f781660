"""Small exchanges between ranks beside the training, over a CPU group of their own that no device waits for."""

import json
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work

from aboard.trainer.distributed.rank_context import RankContext

# Ranks get here within a step of each other; no step takes hours.
_PATIENCE = timedelta(minutes=30)


def gather_json(value: Any, group: ProcessGroup) -> list[Any]:
    """The values of all ranks of a CPU group, in rank order; all ranks must call it."""
    payload = make_byte_tensor(json.dumps(value).encode())
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(sizes, torch.tensor([payload.numel()]), group=group)
    longest = max(int(size) for size in sizes)
    texts = [torch.zeros(longest, dtype=torch.uint8) for _ in sizes]
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: payload.numel()] = payload
    dist.all_gather(texts, padded, group=group)
    return [json.loads(text[: int(size)].numpy().tobytes()) for text, size in zip(texts, sizes, strict=True)]


def make_byte_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


class RankConsensus:
    """Every rank creates it, and calls it in the same order; with one rank it returns the rank's own values."""

    def __init__(self, context: RankContext) -> None:
        self.world = context
        self._group: ProcessGroup | None = None
        if context.distributed:
            self._group = dist.new_group(backend="gloo", timeout=_PATIENCE)

    def sums(self, values: list[float]) -> list[float]:
        """Element-wise sums over all ranks, in double precision."""
        if self._group is None:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=self._group)
        summed: list[float] = tensor.tolist()
        return summed

    def words(self, texts: list[str]) -> list[list[str]]:
        """The value of each rank, by rank: for rare and small data."""
        if self._group is None:
            return [texts]
        return gather_json(texts, self._group)

    def most(self, value: int) -> "PendingMaximum":
        """The maximum over all ranks, available later."""
        tensor = torch.tensor([value], dtype=torch.int32)
        if self._group is None:
            return PendingMaximum(tensor, None)
        return PendingMaximum(tensor, dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group, async_op=True))


class PendingMaximum:
    """A maximum under way; reading it waits until every rank has contributed."""

    def __init__(self, tensor: torch.Tensor, work: Work | None) -> None:
        self._told = tensor
        self._work = work

    def get(self) -> int:
        if self._work is not None:
            self._work.wait()
        return int(self._told.numpy()[0])
