"""The time ledger: every second of a rank belongs to one class, so that all add up to wall time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

TimeKind = Literal[
    "init", "compile", "data", "forward_backward", "communication", "optimizer", "checkpoint", "evaluation", "other"
]
TIME_KINDS: tuple[TimeKind, ...] = (
    "init", "compile", "data", "forward_backward", "communication", "optimizer", "checkpoint", "evaluation", "other",
)  # fmt: skip


class TimeLedger:
    """One class is current at any time; `switch_to` changes it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.compilations = self.recompilations = 0
        self._clock = clock
        self._kind: TimeKind = "init"
        self._since = self._began = clock()
        self._seconds: dict[TimeKind, float] = dict.fromkeys(TIME_KINDS, 0.0)
        self._taken = dict(self._seconds)

    def switch_to(self, kind: TimeKind) -> TimeKind:
        """Switches from now on; returns the previous class."""
        now, before = self._clock(), self._kind
        self._seconds[before] += now - self._since
        self._since, self._kind = now, kind
        return before

    @contextmanager
    def count_as(self, kind: TimeKind) -> Iterator[None]:
        before = self.switch_to(kind)
        try:
            yield
        finally:
            self.switch_to(before)

    def take(self) -> dict[TimeKind, float]:
        """The seconds of each class since the last call."""
        self.switch_to(self._kind)
        window = {kind: self._seconds[kind] - self._taken[kind] for kind in TIME_KINDS}
        self._taken = dict(self._seconds)
        return window

    def total(self) -> tuple[dict[TimeKind, float], float]:
        """The seconds of each class, and the wall time since the ledger was opened."""
        self.switch_to(self._kind)
        return dict(self._seconds), self._since - self._began
