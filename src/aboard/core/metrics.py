"""What a trainer tells of itself while it runs, and the curve that its loss has drawn so far."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# The figures that are carried to the head; a trainer's own file has all of them.
METRICS = (
    "step",
    "steps",
    "epoch",
    "loss",
    "eval_loss",
    "learning_rate",
    "grad_norm",
    "tokens",
    "tokens_per_second",
    "mfu",
    "memory",
    "eta",
)
MOST_POINTS = 512


@dataclass(kw_only=True)
class Curve:
    """Points of (step, loss), in bounded memory: when there are too many, every second one goes, the last stays."""

    points: list[tuple[int, float]] = field(default_factory=list)
    _every: int = 1
    _met: int = 0

    def add(self, step: int, loss: float) -> None:
        """Takes a point in; one that is no further than the last begins anew from there, as a resumed run does."""
        if self.points and (step, loss) == self.points[-1]:
            return
        while self.points and step <= self.points[-1][0]:
            self.points.pop()
        # The last one is the newest always, and gives way to the next unless its turn has come to be kept.
        if self._met % self._every and self.points:
            self.points.pop()
        self.points.append((step, loss))
        self._met += 1
        if len(self.points) > MOST_POINTS:
            self.points = self.points[::2]
            self._every *= 2
            self._met = 0


@dataclass(frozen=True, kw_only=True)
class Way:
    """How far a training is: its trainer's latest figures, and the curve of its loss."""

    metrics: Mapping[str, float]
    curve: tuple[tuple[int, float], ...] = ()

    @property
    def step(self) -> int:
        return int(self.metrics.get("step", 0))

    @property
    def share(self) -> float | None:
        """How much of it is done, where the trainer knows how much there is."""
        steps = self.metrics.get("steps")
        return min(1.0, self.metrics.get("step", 0) / steps) if steps else None
