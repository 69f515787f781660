"""The time ledger: every second of a rank belongs to one class, so that they add up to wall time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

Kind = Literal["init", "data", "forward_backward", "communication", "optimizer", "checkpoint", "evaluation", "other"]
KINDS: tuple[Kind, ...] = (
    "init", "data", "forward_backward", "communication", "optimizer", "checkpoint", "evaluation", "other",
)  # fmt: skip


class Ledger:
    """One class is current at any time; `spend` makes it another one."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._kind: Kind = "init"
        self._since = self._began = clock()
        self._seconds: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
        self._taken = dict(self._seconds)

    def spend(self, kind: Kind) -> Kind:
        """From now on; returns what it was before."""
        now, before = self._clock(), self._kind
        self._seconds[before] += now - self._since
        self._since, self._kind = now, kind
        return before

    @contextmanager
    def spent(self, kind: Kind) -> Iterator[None]:
        before = self.spend(kind)
        try:
            yield
        finally:
            self.spend(before)

    def take(self) -> dict[Kind, float]:
        """The seconds of each class since the last take."""
        self.spend(self._kind)
        window = {kind: self._seconds[kind] - self._taken[kind] for kind in KINDS}
        self._taken = dict(self._seconds)
        return window

    def total(self) -> tuple[dict[Kind, float], float]:
        """The seconds of each class, and the wall time since the ledger was opened."""
        self.spend(self._kind)
        return dict(self._seconds), self._since - self._began
