"""The rhythm of a run: what its steps usually take, and when it is broken for so long that one should ask."""

from dataclasses import field

from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_state import Run
from aboard.lazy_dataclass import dataclass

# Nothing new for so long is worth a look. Figures come once a second; to look costs little, and rules have patience.
LEAST_SECONDS = 3.0
LEAST_STEP_SECONDS = 3.0
# A step may take a few times as long as usual, for a checkpoint or a slow batch, before anyone looks.
STEPS = 4.0
SLOWER = 2.5
SLOW_SECONDS = 8.0
# A node that is cut off for so long is not only changing its route.
CUT_SECONDS = 1.2
# The same question is asked again ever more rarely.
AGAIN_SECONDS = 1.0
GROWTH = 1.6
LONGEST_SECONDS = 30.0
# The usual step is learned over about so many reports, and none of them counts before this many steps.
_MEMORY = 20
_WARM_UP = 3


@dataclass(kw_only=True)
class StallDetector:
    """Fed with the run as it is now and then; it changes, as the run does."""

    moved: float = 0.0
    usual: float | None = None
    pace: float | None = None
    _generation: int = 0
    _step: float = -1
    _at: tuple[float, ...] = ()
    _reports: int = 0
    _slow_since: float | None = None
    _next: float = 0.0
    _asked: float = 0.0
    _pause: float = AGAIN_SECONDS
    _seen: dict[tuple[str, str], float] = field(default_factory=dict)

    def note(self, run: Run, now: float) -> bool:
        """Takes in what has happened since; whether anything has moved."""
        generation = run.generation
        if generation.number != self._generation:
            self.__init__(_generation=generation.number, moved=max(now, generation.moved))  # type: ignore[misc]
            return True
        steps = [sample.values["step"] for sample in run.samples.values() if "step" in sample.values]
        # Who waits for nobody else is not stuck: a node that has only fallen silent leaves its last step behind.
        step = max(steps, default=-1)
        moved = generation.moved > self.moved or step != self._step
        if moved:
            self.moved = now if step != self._step else max(self.moved, generation.moved)
            self._step = step
            self._next, self._pause = 0.0, AGAIN_SECONDS
        self._learn(run, now)
        return moved

    def quiet(self, now: float) -> float:
        """For how many seconds nothing has moved."""
        return max(0.0, now - self.moved)

    def limit(self, run: Run) -> float:
        """After how much quiet one should ask."""
        if run.generation.phases[Phase.STEPS] and self.usual is not None:
            return max(LEAST_STEP_SECONDS, STEPS * self.usual + 1.0)
        return LEAST_SECONDS

    def due(self, run: Run, now: float) -> bool:
        """Whether it is time to ask; asked again, the pauses grow."""
        stuck = self.quiet(now) >= self.limit(run)
        slow = self._slow_since is not None and now - self._slow_since >= SLOW_SECONDS
        if not (stuck or slow) or (now < self._next and not self._cut_since(run, now)):
            return False
        self._asked = now
        self._next = now + self._pause
        self._pause = min(LONGEST_SECONDS, self._pause * GROWTH)
        return True

    def _cut_since(self, run: Run, now: float) -> bool:
        """Whether a node has fallen silent since one asked, for longer than a blink: that is another question."""
        cuts = (place.at for place in run.generation.places.values() if place.state == "cut")
        return any(self._asked < at + CUT_SECONDS <= now for at in cuts)

    @property
    def slow(self) -> bool:
        return self._slow_since is not None

    def _learn(self, run: Run, now: float) -> None:
        """The usual step from the ranks' own reports; those that are much longer are news, not custom."""
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
        if self._reports <= _WARM_UP or self.usual is None:
            self.usual = pace
        elif pace <= SLOWER * self.usual:
            self.usual += (pace - self.usual) / min(self._reports, _MEMORY)
            self._slow_since = None
        elif self._slow_since is None:
            self._slow_since = now
