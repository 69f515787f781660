"""The metrics that a trainer reports, its loss curve, and its step time."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

from aboard.core.decoding import MaxLength
from aboard.lazy_dataclass import dataclass

# The metrics that are sent to the head; the trainer's own file has all of them.
METRICS = (
    "step", "steps", "epoch", "loss", "eval_loss", "best_eval_loss", "learning_rate", "grad_norm", "tokens",
    "tokens_per_second", "mfu", "memory", "eta", "saved", "start", "step_seconds", "typical_step_seconds",
)  # fmt: skip
MOST_POINTS = 512
# The weight of a step time halves after about 35 steps.
_DECAY = 0.98
_MOST_WINDOWS = 512


@dataclass(kw_only=True)
class LossCurve:
    """Points of (step, loss) in bounded memory: when full, every second point is dropped; the last one stays."""

    points: list[tuple[int, float]] = field(default_factory=list)
    _every: int = 1
    _met: int = 0

    def add(self, step: int, loss: float) -> None:
        """Adds a point; a step at or before the last one restarts the curve there, as a resumed run does."""
        if self.points and (step, loss) == self.points[-1]:
            return
        while self.points and step <= self.points[-1][0]:
            self.points.pop()
        # The last point is always the newest; the next one replaces it unless it is to be kept.
        if self._met % self._every and self.points:
            self.points.pop()
        self.points.append((step, loss))
        self._met += 1
        if len(self.points) > MOST_POINTS:
            self.points = self.points[::2]
            self._every *= 2
            self._met = 0


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The seconds per step as an exponential moving average over `steps` steps."""

    seconds: float = 0.0
    steps: int | None = None

    def after(self, seconds: float, steps: int) -> "StepTime":
        """With `steps` more steps of `seconds` each. Warm-up steps count only until there are others."""
        if self.steps is None:
            return StepTime(seconds=seconds, steps=0)
        weight = max(steps / (self.steps + steps), 1 - _DECAY**steps)
        mean = self.seconds + weight * (seconds - self.seconds)
        return StepTime(seconds=mean, steps=self.steps + steps)


@dataclass(kw_only=True)
class TypicalStep:
    """The median seconds of a step, from windows of steps in bounded memory: waits in a few of them change nothing."""

    _windows: list[tuple[float, int]] = field(default_factory=list)

    def add(self, seconds: float, steps: int) -> None:
        self._windows.append((seconds, steps))
        if len(self._windows) > _MOST_WINDOWS:
            del self._windows[::2]

    @property
    def seconds(self) -> float | None:
        left = sum(steps for _, steps in self._windows) / 2
        for seconds, steps in sorted(self._windows):
            left -= steps
            if left <= 0:
                return seconds
        return None


@dataclass(frozen=True, kw_only=True)
class TrainingStatus:
    """The progress of a training run: its latest metrics, its loss curve, and the step `at` which its ranks are.

    Metrics come every few steps, the ranks' steps several times per second.
    """

    metrics: Mapping[str, float]
    curve: Annotated[tuple[tuple[int, float], ...], MaxLength(MOST_POINTS + 1)] = ()
    at: int | None = None

    @property
    def step(self) -> int:
        return int(self.metrics.get("step", 0)) if self.at is None else self.at

    @property
    def share(self) -> float | None:
        """The completed fraction, if the trainer knows the total."""
        steps = self.metrics.get("steps")
        return min(1.0, self.step / steps) if steps else None

    @property
    def left(self) -> float | None:
        """Seconds until the end: the trainer's estimate in its last log line, minus the steps since."""
        eta, steps, logged = (self.metrics.get(name) for name in ("eta", "steps", "step"))
        if eta is None or steps is None or logged is None or steps <= logged:
            return eta
        return eta * max(0.0, steps - self.step) / (steps - logged)

    @property
    def saved(self) -> int | None:
        """The step of the newest complete checkpoint."""
        saved = self.metrics.get("saved")
        return None if saved is None else int(saved)
