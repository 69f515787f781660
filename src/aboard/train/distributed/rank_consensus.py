"""What ranks tell each other beside the training: few numbers, over a group of its own that no device waits for."""

import json
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work

from aboard.train.distributed.rank_context import RankContext

# Ranks come here within a step of each other; a step of hours is none.
_PATIENCE = timedelta(minutes=30)


class RankConsensus:
    """Every rank makes it, and calls it in the same order; at world 1 it is alone and knows the answers."""

    def __init__(self, world: RankContext) -> None:
        self.world = world
        self._group: ProcessGroup | None = None
        if world.distributed:
            self._group = dist.new_group(backend="gloo", timeout=_PATIENCE)

    def sums(self, values: list[float]) -> list[float]:
        """Of each place over all ranks, in double precision."""
        if self._group is None:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, group=self._group)
        summed: list[float] = tensor.tolist()
        return summed

    def words(self, texts: list[str]) -> list[list[str]]:
        """What each rank tells, by rank: for rare and small things."""
        if self._group is None:
            return [texts]
        own = torch.frombuffer(bytearray(json.dumps(texts).encode()), dtype=torch.uint8)
        sizes = [0.0] * self.world.size
        sizes[self.world.rank] = len(own)
        lengths = [int(size) for size in self.sums(sizes)]
        buffers = [torch.zeros(max(lengths), dtype=torch.uint8) for _ in lengths]
        mine = torch.zeros(max(lengths), dtype=torch.uint8)
        mine[: len(own)] = own
        dist.all_gather(buffers, mine, group=self._group)
        return [json.loads(each[:length].numpy().tobytes()) for each, length in zip(buffers, lengths, strict=True)]

    def most(self, value: int) -> "PendingMaximum":
        """The largest of all ranks' values, to be had later."""
        tensor = torch.tensor([value], dtype=torch.int32)
        if self._group is None:
            return PendingMaximum(tensor, None)
        return PendingMaximum(tensor, dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group, async_op=True))


class PendingMaximum:
    """It is under way; who asks for it waits until every rank has told its own."""

    def __init__(self, tensor: torch.Tensor, work: Work | None) -> None:
        self._told = tensor
        self._work = work

    def get(self) -> int:
        if self._work is not None:
            self._work.wait()
        return int(self._told.numpy()[0])
