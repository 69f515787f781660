"""External requests, agreed upon by all ranks: SIGTERM saves and stops, a touched file saves, or saves and stops.

A rank that acted alone would leave the others in a collective. So at the end of a step each rank reports its request,
and all act at the end of the next one: the result has arrived by then, without a device sync.
"""

import signal
from enum import IntEnum
from math import ceil
from pathlib import Path
from types import FrameType
from typing import Self

from aboard.trainer.distributed.rank_consensus import PendingMaximum, RankConsensus

# Seconds between exchanges: negligible for steps of usual length, and SIGTERM takes effect soon.
_EVERY = 0.2


class StopRequest(IntEnum):
    """A request; the higher one includes the lower."""

    NOTHING = 0
    SAVE = 1
    STOP = 2
    TERMINATE = 3


class RequestListener:
    """Handles SIGTERM and, on rank 0, the files SAVE and STOP; `agree` is called at the end of each step."""

    def __init__(self, folder: Path, consensus: RankConsensus) -> None:
        self._files = {folder / "STOP": StopRequest.STOP, folder / "SAVE": StopRequest.SAVE}
        self._consensus = consensus
        self._terminated = False
        self._waiting: PendingMaximum | None = None
        self._every = 1
        self._step = self._next = 0

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGTERM, self._on_sigterm)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        signal.signal(signal.SIGTERM, self._before)
        if error is None and self._waiting is not None:
            self._waiting.get()

    def pace(self, seconds: float) -> None:
        """Sets the seconds per step, the same on all ranks: they exchange requests a few times a second."""
        self._every = max(1, ceil(_EVERY / max(seconds, 1e-6)))

    def agree(self) -> StopRequest:
        """What all ranks do now, agreed a step ago."""
        self._step += 1
        request = StopRequest.NOTHING
        if self._waiting is not None:
            request = StopRequest(self._waiting.get())
            self._waiting = None
            if request is not StopRequest.NOTHING and self._consensus.world.main:
                for path in self._files:
                    path.unlink(missing_ok=True)
        elif self._step >= self._next:
            self._next = self._step + self._every
            self._waiting = self._consensus.most(self._own())
        return request

    def _own(self) -> StopRequest:
        if self._terminated:
            return StopRequest.TERMINATE
        if self._consensus.world.main:
            return next((request for path, request in self._files.items() if path.exists()), StopRequest.NOTHING)
        return StopRequest.NOTHING

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        self._terminated = True
