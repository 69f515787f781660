"""What the time of a run is spent on, over all its generations, and its goodput."""

import json
from collections.abc import Mapping
from dataclasses import field
from typing import Any, assert_never

from aboard.core.run import event_kinds as kinds
from aboard.core.run.events import Event
from aboard.core.run.rank_phases import Phase
from aboard.lazy_dataclass import dataclass

# The classes of a run's time, as docs/recovery.md explains them.
STARTING, LOADING, STEPS, REPEATED = "starting", "loading", "steps", "repeated"
DETECTION, STOPPING, WAITING = "detection", "stopping", "waiting"
RUN_TIMES = (STARTING, LOADING, STEPS, REPEATED, DETECTION, STOPPING, WAITING)
# What of it only a failure costs, and what is no new step.
FAILURE_TIMES = (DETECTION, STOPPING, WAITING)
RECOVERY_TIMES = (*FAILURE_TIMES, STARTING, LOADING, REPEATED)
# The variable in which ranks receive what was spent before they started.
VARIABLE = "ABOARD_EARLIER"


@dataclass(kw_only=True)
class RunLedger:
    """Exactly one class is current from the first generation to the end, so that all add up to the wall time."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(RUN_TIMES, 0.0))
    # The current class, since when; "" before the run and after it.
    current: str = ""
    since: float = 0.0
    # The step that the run's first generation continued from; None if the program doesn't report it.
    first: int | None = None
    # The step that this generation continued from, and the furthest one that any earlier generation reached.
    start: int | None = None
    reached: int = 0
    # How many generations failed after their first step.
    failures: int = 0
    # Steps whose result is not lost, at the last change of generations.
    committed: int = 0
    # The median of an undisturbed step, which the trainer reports.
    step_seconds: float | None = None
    # When the last failure showed first.
    failed_at: float = 0.0
    _stepped: bool = False
    _signs: dict[str, float] = field(default_factory=dict)

    def apply(self, event: Event, *, phase: Phase, deaths: Mapping[str, float]) -> None:  # noqa: C901, PLR0912 - an arm for each kind
        """Applies an event after the run has; `phase` is the furthest of any rank, `deaths` when nodes failed."""
        match event.body:
            case kinds.AttemptStarted():
                # Its conductor was killed as well, as that of a Slurm job whose batch host failed.
                self.failures += self.is_stepping
                # Between two Slurm jobs that continue one run, nothing runs either.
                self.current = WAITING if self.seconds[STARTING] and not self.current else self.current
                self._switch(STARTING, event.at)
                self.start = None
                self._signs.clear()
            case kinds.PhaseReached():
                if self.current == STARTING and phase >= Phase.GROUP:
                    self._switch(LOADING, event.at)
            case kinds.SteppingStarted(start=start):
                self._apply_stepping(event.at, start)
            case kinds.CaughtUp():
                if self.current == REPEATED:
                    self._switch(STEPS, event.at)
            case kinds.NodeDisconnected() | kinds.NodeLost() | kinds.RankStopped():
                self._signs.setdefault(event.node, event.at)
            case kinds.NodeConnected():
                self._signs.pop(event.node, None)
            case kinds.Deciding(sign=sign):
                self._apply_decision(event.at, sign, deaths)
            case kinds.Restarting():
                self._switch(WAITING, event.at)
            case kinds.Recovering() | kinds.Finished() as body:
                self._apply_end(event.at, body)
            case kinds.VerdictChanged() | kinds.Stopping() | kinds.Settling() | kinds.SpareChanged() | kinds.Unsent():
                pass
            case kinds.ChildReport() | kinds.NodeReport() | kinds.Bookkeeping() | kinds.UnknownEvent():
                pass
            case forgotten:
                assert_never(forgotten)

    @property
    def is_stepping(self) -> bool:
        """Whether this generation has begun its first step, and has not failed."""
        return self.current in (STEPS, REPEATED)

    @property
    def is_recovering(self) -> bool:
        """Whether the ranks of the last generation are gone, and this one has not begun its first step."""
        return self.current in (WAITING, STARTING, LOADING)

    def measure(self, now: float) -> dict[str, float]:
        """The seconds of each class until now, or until the end."""
        spent = dict(self.seconds)
        if self.current:
            spent[self.current] += max(0.0, now - self.since)
        return spent

    def compute_goodput(self, step: int | None, now: float) -> float | None:
        """Committed steps × the time of an undisturbed step ÷ wall time, with `step` as the last one now."""
        wall, seconds = sum(self.measure(now).values()), self.step_seconds
        if self.first is None or seconds is None or wall <= 0:
            return None
        done = step if step is not None and self.current in (STEPS, REPEATED, DETECTION, STOPPING) else self.committed
        return max(0, done - self.first) * seconds / wall

    def _apply_stepping(self, at: float, start: int | None) -> None:
        if self.current in (STARTING, LOADING) or (self.is_stepping and self.start is None):
            self.start = start
            if start is not None:
                self.first = start if self.first is None else self.first
                self.committed = start
            self._switch(REPEATED if start is not None and start < self.reached else STEPS, at)

    def _apply_decision(self, at: float, stuck: float | None, deaths: Mapping[str, float]) -> None:
        """Time counts as detection from the first sign of what ended the generation."""
        signs = [min(death, self._signs.get(node, death)) for node, death in deaths.items()]
        sign = min([*signs, at if stuck is None else stuck, at])
        self.failed_at = max(sign, self.since)
        self._stepped = self.is_stepping
        self._switch(DETECTION, sign)
        self._switch(STOPPING, at)

    def _apply_end(self, at: float, body: kinds.Recovering | kinds.Finished) -> None:
        over = isinstance(body, kinds.Finished)
        if not over:
            self.failures += self._stepped
            self._stepped = False
        self._switch("" if over else WAITING, at)
        self.step_seconds = self.step_seconds if body.step_seconds is None else body.step_seconds
        if body.step is not None:
            self.reached = max(self.reached, body.step)
        if isinstance(body, kinds.Finished) and body.code == 0:
            self.committed = self.committed if body.step is None else body.step
        elif body.saved is not None:
            self.committed = max(body.saved, self.first or 0)

    def _switch(self, kind: str, at: float) -> None:
        # Clocks of nodes are corrected, but not exact.
        at = max(at, self.since)
        if self.current:
            self.seconds[self.current] += at - self.since
        self.current, self.since = kind, at


def encode_earlier(ledger: RunLedger, began: float) -> str:
    """What ranks receive when a generation starts; `began` is when the run did, by the clock of their node."""
    seconds = {kind: round(spent, 3) for kind, spent in ledger.seconds.items() if spent}
    steps = {"reached": ledger.reached, "first": ledger.first, "failures": ledger.failures}
    return json.dumps({"began": began, "seconds": seconds, **steps})


@dataclass(frozen=True, kw_only=True)
class EarlierTime:
    """What was spent before a rank's process group was ready: in earlier generations, and to start this one."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    # The furthest step that was reached, and the one that the run's first generation continued from.
    reached: int = 0
    first: int | None = None
    # Generations that failed after their first step.
    failures: int = 0

    @classmethod
    def of(cls, environ: Mapping[str, str], now: float) -> "EarlierTime":
        """As the conductor passed it; nothing for a rank that was started without it."""
        if VARIABLE not in environ:
            return cls()
        content: dict[str, Any] = json.loads(environ[VARIABLE])
        seconds: dict[str, float] = content["seconds"]
        starting = max(0.0, now - content["began"] - sum(seconds.values()))
        seconds = {**seconds, STARTING: seconds.get(STARTING, 0.0) + starting}
        return cls(seconds=seconds, **{name: content[name] for name in ("reached", "first", "failures")})


NOTHING_EARLIER = EarlierTime()
