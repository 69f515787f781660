"""Detects stalls: learns how long a step takes, and when the lack of progress calls for a snapshot."""

from dataclasses import field

from aboard.core.run.lateness import LatenessWindow
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_state import Run
from aboard.lazy_dataclass import dataclass

# This long without progress calls for a snapshot. Measurements come every second; a snapshot is cheap, and rules wait
# for more evidence.
LEAST_SECONDS = 3.0
LEAST_STEP_SECONDS = 3.0
# A step may take this many times as long as usual (a checkpoint, a slow batch) before a snapshot is due.
STUCK_FACTOR = 4.0
SLOW_FACTOR = 2.5
SLOW_SECONDS = 8.0
# A node that is cut off for this long isn't just rerouting.
CUT_SECONDS = 1.2
# The first pause between snapshots of the same stall; pauses then grow.
FIRST_PAUSE_SECONDS = 1.0
PAUSE_GROWTH = 1.6
LONGEST_PAUSE_SECONDS = 30.0
# The typical step time is averaged over about this many reports; a faster one among the first few replaces it.
_AVERAGED_REPORTS = 20
_WARM_UP_REPORTS = 3
# A slower pace that nothing explains is the usual one after so long.
_UNEXPLAINED_SECONDS = 60.0
# A run is slow, too, if the others wait for one rank for this share of a window, and not at a single collective, where
# it may save a checkpoint or evaluate.
_LATE_SHARE = 0.5
_LEAST_COLLECTIVES = 5


@dataclass(kw_only=True)
class StallDetector:
    """Updated with the run now and then; mutable, like the run."""

    moved: float = 0.0
    usual: float | None = None
    pace: float | None = None
    _generation: int = 0
    _step: float = -1
    _at: tuple[float, ...] = ()
    _reports: int = 0
    _slow_since: float | None = None
    _late: bool = False
    _next: float = 0.0
    _last_snapshot: float = 0.0
    _pause: float = FIRST_PAUSE_SECONDS
    _seen: dict[tuple[str, str], float] = field(default_factory=dict)

    def update(self, run: Run, now: float) -> bool:
        """Updates the state; returns whether the run made progress."""
        generation = run.generation
        if generation.number != self._generation:
            self.__init__(_generation=generation.number, moved=max(now, generation.moved))  # type: ignore[misc]
            return True
        steps = [sample.values["step"] for sample in run.samples.values() if "step" in sample.values]
        # The furthest rank decides: if it advances, nothing is stuck, even if a silent node's last step stays.
        step = max(steps, default=-1)
        moved = generation.moved > self.moved or step != self._step
        if moved:
            self.moved = now if step != self._step else max(self.moved, generation.moved)
            self._step = step
            if not self.slow:
                self._next, self._pause = 0.0, FIRST_PAUSE_SECONDS
        self._learn(run, now)
        return moved

    def quiet(self, now: float) -> float:
        """Seconds without progress."""
        return max(0.0, now - self.moved)

    def limit(self, run: Run) -> float:
        """Seconds without progress after which a snapshot is due."""
        return compute_limit(self.usual if run.generation.phases[Phase.STEPS] else None)

    def due(self, run: Run, now: float) -> bool:
        """Whether a snapshot is due; the pauses between snapshots grow."""
        stuck = self.quiet(now) >= self.limit(run)
        slow = self._late or (self._slow_since is not None and now - self._slow_since >= SLOW_SECONDS)
        if stuck and self._last_snapshot < self.moved:
            # A slow run gets stuck: the pauses between snapshots of a slow one don't count.
            self._next, self._pause = 0.0, FIRST_PAUSE_SECONDS
        if not (stuck or slow) or (now < self._next and not self._has_new_cut(run, now)):
            return False
        self._last_snapshot = now
        self._next = now + self._pause
        self._pause = min(LONGEST_PAUSE_SECONDS, self._pause * PAUSE_GROWTH)
        return True

    def _has_new_cut(self, run: Run, now: float) -> bool:
        """Whether a node was cut off since the last snapshot, and not just for a moment."""
        cuts = (connection.at for connection in run.generation.connections.values() if connection.state == "cut")
        return any(self._last_snapshot < at + CUT_SECONDS <= now for at in cuts)

    @property
    def slow(self) -> bool:
        return self._late or self._slow_since is not None

    def take_lateness(self, window: LatenessWindow) -> None:
        """Notes whether one rank is late: if it is from the start, no step time shows it."""
        costs = (late.mean * window.count - late.worst for late in window.late.values())
        self._late = window.count >= _LEAST_COLLECTIVES and max(costs, default=0.0) >= _LATE_SHARE * window.seconds

    def accept_pace(self, now: float) -> None:
        """Takes the current pace for the usual one if a snapshot has not explained it for long."""
        if self._slow_since is not None and now - self._slow_since >= _UNEXPLAINED_SECONDS:
            self.usual, self._slow_since = self.pace, None

    def _learn(self, run: Run, now: float) -> None:
        """Learns the typical step time from the ranks' reports, ignoring outliers."""
        paces = []
        for key, sample in run.samples.items():
            step = sample.values.get("step")
            if step is not None and "step_seconds" in sample.values and self._seen.get(key) != step:
                self._seen[key] = step
                paces.append(sample.values["step_seconds"])
        if not paces:
            return
        pace = self.pace = sorted(paces)[len(paces) // 2]
        self._reports += 1
        if self.usual is None or (self._reports <= _WARM_UP_REPORTS and pace < self.usual):
            self.usual, self._slow_since = pace, None
        elif pace <= SLOW_FACTOR * self.usual:
            self.usual += (pace - self.usual) / min(self._reports, _AVERAGED_REPORTS)
            self._slow_since = None
        elif self._slow_since is None:
            self._slow_since = now


def compute_limit(usual: float | None) -> float:
    """Seconds without progress that are still normal, by the usual seconds of a step; None before the first step."""
    return LEAST_SECONDS if usual is None else max(LEAST_STEP_SECONDS, STUCK_FACTOR * usual + 1.0)
