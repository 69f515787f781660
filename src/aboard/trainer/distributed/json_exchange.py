"""Exchanges JSON between ranks for checkpoints, over a group of its own, apart from training's collectives."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from aboard.diagnoses import AboardError, TrainerError
from aboard.trainer.diagnoses import checkpoint
from aboard.trainer.distributed.rank_consensus import gather_json, make_byte_tensor


class RankExchange:
    """Created once, by all ranks together; with one rank nothing is sent."""

    def __init__(self, *, size: int, patience: float) -> None:
        patient = timedelta(seconds=patience)
        self._group = dist.new_group(backend="gloo", timeout=patient) if size > 1 else None

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in rank order; all ranks must call it."""
        if self._group is None:
            return [value]
        try:
            return gather_json(value, self._group)
        except RuntimeError as error:
            raise _build_timeout_error(error) from error

    def broadcast(self, data: bytes | None, *, source: int) -> bytes:
        """Broadcasts the bytes of one rank."""
        if self._group is None:
            return data or b""
        try:
            size = torch.tensor([len(data or b"")])
            dist.broadcast(size, src=source, group=self._group)
            text = make_byte_tensor(data) if data else torch.zeros(int(size), dtype=torch.uint8)
            dist.broadcast(text, src=source, group=self._group)
        except RuntimeError as error:
            raise _build_timeout_error(error) from error
        return text.numpy().tobytes()


def _build_timeout_error(error: RuntimeError) -> AboardError:
    return TrainerError(
        checkpoint.PEER_LOST, f"another rank stopped responding during a checkpoint: {str(error).splitlines()[0]}"
    )
