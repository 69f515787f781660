"""Exchanges JSON between ranks for checkpoints, over a group of its own, apart from training's collectives."""

import json
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from aboard.diagnoses import AboardError
from aboard.diagnoses.trainer import checkpoint


class RankExchange:
    """Created once, by all ranks together; with one rank nothing is sent."""

    def __init__(self, *, size: int, patience: float) -> None:
        self._size = size
        self._group = None
        if size > 1:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=patience))

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in rank order; all ranks must call it."""
        if self._group is None:
            return [value]
        payload = _encode_json(value)
        try:
            sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self._size)]
            dist.all_gather(sizes, torch.tensor([payload.numel()]), group=self._group)
            longest = max(int(size) for size in sizes)
            texts = [torch.zeros(longest, dtype=torch.uint8) for _ in sizes]
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: payload.numel()] = payload
            dist.all_gather(texts, padded, group=self._group)
        except RuntimeError as error:
            raise _build_timeout_error(error) from error
        return [json.loads(text[: int(size)].numpy().tobytes()) for text, size in zip(texts, sizes, strict=True)]

    def broadcast(self, data: bytes | None, *, source: int) -> bytes:
        """Broadcasts the bytes of one rank."""
        if self._group is None:
            return data or b""
        try:
            size = torch.tensor([len(data or b"")])
            dist.broadcast(size, src=source, group=self._group)
            text = _make_tensor(data) if data else torch.zeros(int(size), dtype=torch.uint8)
            dist.broadcast(text, src=source, group=self._group)
        except RuntimeError as error:
            raise _build_timeout_error(error) from error
        return text.numpy().tobytes()


def _encode_json(value: Any) -> torch.Tensor:
    return _make_tensor(json.dumps(value).encode())


def _make_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _build_timeout_error(error: RuntimeError) -> AboardError:
    return AboardError(
        checkpoint.PEER_LOST, f"another rank stopped responding during a checkpoint: {str(error).splitlines()[0]}"
    )
