"""The progress watch: asks why by itself when the rhythm of a run breaks, and says so once."""

import asyncio
from collections.abc import Awaitable, Callable
from time import time

from aboard.core.evidence.verdict import SLOW, Judgement, is_same_verdict
from aboard.core.run.run_state import Run
from aboard.core.run.stall_detector import StallDetector
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.runs import hang

AskWhy = Callable[[], Awaitable[Judgement]]
ReportVerdict = Callable[[Finding | None], None]
# A verdict that stays for so long is one to act upon.
STAYS_SECONDS = 5.0
LOSS = "loss-"
GOES_ON_SECONDS = 1.5
# A run whose loss is no number moves all the same; the verdict stays while that is said again and again.
LOSS_SECONDS = 60.0
SUSPECT_SECONDS = 2.0


class StallMonitor:
    """One run's: `tell` hears of each new verdict, and None when the run moves again; `act` of one that stays."""

    def __init__(self, ask: AskWhy, tell: ReportVerdict, act: Callable[[Judgement], None] = lambda _why: None) -> None:
        self.rhythm = StallDetector()
        self.why: Judgement | None = None
        self._ask = ask
        self._tell = tell
        self._act = act
        self._asking: asyncio.Task[None] | None = None
        self._since = 0.0
        self._settled = 0.0
        self._suspected = self._looked = float("-inf")

    def suspect(self, now: float) -> None:
        """A rank said what is worth a look, though the run moves: a loss that is no number."""
        self._suspected = now

    def tick(self, run: Run, now: float) -> None:
        """To be called some times a second; it never waits."""
        moved = self.rhythm.update(run, now)
        bad_loss = _has_bad_loss(self.why) and now - self._suspected < LOSS_SECONDS
        well = not self.rhythm.slow and not (_is_slow(self.why) and self._is_recently_settled(now)) and not bad_loss
        if moved and self.why is not None and well:
            self._settle(None)
        if run.finished is not None or (self._asking is not None and not self._asking.done()):
            return
        if self.rhythm.due(run, now):
            self._asking = asyncio.create_task(self._look(self.rhythm.moved))
        elif not bad_loss and self._has_new_suspicion(now):
            self._looked = now
            self._asking = asyncio.create_task(self._look_at_loss())

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    def _is_recently_settled(self, now: float) -> bool:
        """A run that is slow moves all the same: its verdict stays until it has been well for a while."""
        return now - self._settled < STAYS_SECONDS

    def _has_new_suspicion(self, now: float) -> bool:
        lately = self._suspected > self._looked and now - self._suspected < STAYS_SECONDS
        return lately and now - self._looked >= SUSPECT_SECONDS

    async def _look(self, moved: float) -> None:
        why = await self._ask()
        if _is_busy(self.why) and _get_reportable(why) is not None:
            # A checkpoint or an evaluation may have ended this moment: whoever goes on now is seen to within a second.
            await asyncio.sleep(GOES_ON_SECONDS)
            why = await self._ask() if self.rhythm.moved == moved else why
        if self.rhythm.moved != moved and not self.rhythm.slow:
            # It went on while we asked.
            return
        self._settle(why)

    async def _look_at_loss(self) -> None:
        why = await self._ask()
        if _has_bad_loss(why):
            self._settle(why)

    def _settle(self, why: Judgement | None) -> None:
        """Tells what is new: another cause, or other nodes and ranks."""
        before, after = _get_reportable(self.why), _get_reportable(why)
        if before is not None and after is None and why is not None and self.rhythm.slow and _is_slow(self.why):
            # Still slow: one look that saw nothing does not take it back.
            return
        self.why = why
        self._settled = time()
        if not is_same_verdict(before, after):
            self._since = time()
            self._tell(after)
        elif why is not None and after is not None and _is_lasting(after, time() - self._since):
            self._act(why)


def _get_reportable(why: Judgement | None) -> Finding | None:
    """What is worth a word by itself; a run that merely takes its time isn't."""
    first = why.findings[0] if why is not None and why.findings else None
    return first if first is not None and first.severity > Severity.INFO else None


def _is_lasting(finding: Finding, seconds: float) -> bool:
    return finding.severity is Severity.BLOCK and seconds >= STAYS_SECONDS


def _is_busy(why: Judgement | None) -> bool:
    """Whether the last look found somebody at work that others waited for."""
    return why is not None and bool(why.findings) and why.findings[0].code == hang.BUSY.code


def _has_bad_loss(why: Judgement | None) -> bool:
    return why is not None and bool(why.findings) and why.findings[0].code.startswith(LOSS)


def _is_slow(why: Judgement | None) -> bool:
    return why is not None and bool(why.findings) and why.findings[0].code.startswith(SLOW)
