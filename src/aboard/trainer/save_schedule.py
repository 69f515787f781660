"""When the next checkpoint is due, on all ranks at the same step: every `save_steps`, or as rank 0 decides."""

from collections import deque
from collections.abc import Sequence
from math import ceil
from statistics import median_low

from aboard.core.plan.training_settings import SaveSteps
from aboard.core.run.recovery.save_interval import (
    SaveCost,
    SaveInterval,
    decide_save_interval,
    estimate_failure_interval,
)
from aboard.core.run.run_ledger import FAILURE_TIMES, LOADING, STARTING
from aboard.core.text.durations import format_duration
from aboard.trainer.checkpoint.manager import CheckpointManager
from aboard.trainer.distributed.rank_context import RankContext
from aboard.trainer.metrics.time_ledger import TimeLedger

# Saves whose median stall counts: the first one of a process takes longer, as it allocates its buffers.
_MEASURED = 9


class SaveSchedule:
    """With `auto`, rank 0 measures and decides in seconds, and all ranks follow: a log line brings them its numbers."""

    def __init__(
        self, every: SaveSteps, world: RankContext, checkpoints: CheckpointManager, ledger: TimeLedger, *, start: int
    ) -> None:
        self._auto = every == "auto"
        self._steps = None if every == "auto" else every
        self._world = world
        self._checkpoints = checkpoints
        self._ledger = ledger
        self._last = start
        # What all ranks know, and what rank 0 has measured.
        self._cost = SaveCost.of(checkpoints.state)
        self._stalls: deque[float] = deque(maxlen=_MEASURED)
        self._saves = self._measured = 0
        self._stalled = 0.0
        self._interval: SaveInterval | None = None

    def is_due(self, step: int) -> bool:
        if self._auto:
            return self._steps is not None and step - self._last >= self._steps
        return self._steps is not None and step % self._steps == 0

    def add_save(self, step: int) -> None:
        """Counts a save of this step, whatever it was for."""
        self._last = step
        self._saves += 1

    def decide(self) -> list[float]:
        """What rank 0 tells the others, and zeros on them: their sums over all ranks are for `follow`."""
        if not self._auto:
            return []
        if not self._world.main:
            return [0.0, 0.0, 0.0]
        cost, earlier = self._measure(), self._ledger.earlier
        seconds, wall = self._ledger.total()
        trained = wall - sum(seconds.get(kind, 0.0) for kind in (*FAILURE_TIMES, STARTING, LOADING))
        rate = estimate_failure_interval(ranks=self._world.size, seconds=trained, failures=earlier.failures)
        self._interval = decide_save_interval(cost, rate)
        return [self._interval.seconds, cost.stall, cost.complete]

    def apply_decision(self, told: Sequence[float], step_seconds: float) -> dict[str, object]:
        """What rank 0 decided; returns what its log line says about it."""
        if not self._auto:
            return {}
        interval, stall, complete = told
        self._cost = SaveCost(stall=stall, complete=complete)
        self._steps = max(1, ceil(interval / step_seconds))
        return {"save_steps": self._steps, "save_why": self._interval.why if self._interval else ""}

    @property
    def state(self) -> dict[str, object]:
        """What a checkpoint keeps, equal on all ranks."""
        return self._cost.content() if self._auto else {}

    @property
    def note(self) -> str:
        """The interval in force and its reason, for the line of a save."""
        if self._interval is None:
            return ""
        every = f"{self._steps:,} steps ({format_duration(self._interval.seconds)})"
        return f"; the next one after {every}, since {self._interval.why}"

    def _measure(self) -> SaveCost:
        stalled = self._checkpoints.stalled
        if self._saves > self._measured:
            # A step has followed, so that its wait for the copy is known.
            self._stalls.append((stalled - self._stalled) / (self._saves - self._measured))
            self._measured, self._stalled = self._saves, stalled
        stall = median_low(self._stalls) if self._stalls else self._cost.stall
        return SaveCost(stall=stall, complete=self._checkpoints.measure_completion() or self._cost.complete)
