"""The time ledger: every second of a rank belongs to one class, so that all add up to wall time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from aboard.core.run.run_ledger import NOTHING_EARLIER, EarlierTime

TimeKind = Literal[
    "loading", "compile", "data", "forward_backward", "communication", "optimizer", "checkpoint", "evaluation",
    "repeated", "other",
]  # fmt: skip
TIME_KINDS: tuple[TimeKind, ...] = (
    "loading", "compile", "data", "forward_backward", "communication", "optimizer", "checkpoint", "evaluation",
    "repeated", "other",
)  # fmt: skip
# What a step consists of: all of it counts as repeated if the step was done before and lost.
_STEP_KINDS: tuple[TimeKind, ...] = ("data", "forward_backward", "communication", "optimizer", "other")


class TimeLedger:
    """One class is current at any time; `switch_to` changes it. The total begins with what was spent `earlier`."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, *, earlier: EarlierTime = NOTHING_EARLIER
    ) -> None:
        self.earlier = earlier
        self._repeats = False
        self.compilations = self.recompilations = 0
        self._clock = clock
        self._kind: TimeKind = "loading"
        self._since = self._began = clock()
        self._seconds: dict[TimeKind, float] = dict.fromkeys(TIME_KINDS, 0.0)
        self._taken = dict(self._seconds)

    def switch_to(self, kind: TimeKind) -> TimeKind:
        """Switches from now on; returns the previous class."""
        now, before = self._clock(), self._kind
        self._seconds["repeated" if self._repeats and before in _STEP_KINDS else before] += now - self._since
        self._since, self._kind = now, kind
        return before

    def begin_step(self, number: int) -> None:
        """From now on, time is that of this step; lost steps are repeated up to the furthest one of all generations."""
        self.switch_to(self._kind)
        self._repeats = number <= self.earlier.reached

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

    def total(self) -> tuple[dict[str, float], float]:
        """The seconds of each class since the run began, as far as this rank knows, and the wall time."""
        self.switch_to(self._kind)
        earlier = self.earlier.seconds
        own: dict[str, float] = {kind: spent + earlier.get(kind, 0.0) for kind, spent in self._seconds.items()}
        seconds = {**earlier, **own}
        return seconds, self._since - self._began + sum(earlier.values())
