"""The progress watch: asks why by itself when the rhythm of a run breaks, and says so once."""

import asyncio
from collections.abc import Awaitable, Callable
from time import time

from aboard.core.rhythm import Rhythm
from aboard.core.run import Run
from aboard.core.verdict import SLOW, Why, same_verdict
from aboard.diagnoses import Finding, Severity, hang

Ask = Callable[[], Awaitable[Why]]
Tell = Callable[[Finding | None], None]
# A verdict that stays for so long is one to act upon.
STAYS_SECONDS = 5.0
LOSS = "loss-"
GOES_ON_SECONDS = 1.5
# A run whose loss is no number moves all the same; the verdict stays while that is said again and again.
LOSS_SECONDS = 60.0
SUSPECT_SECONDS = 2.0


class Watch:
    """One run's: `tell` hears of each new verdict, and None when the run moves again; `act` of one that stays."""

    def __init__(self, ask: Ask, tell: Tell, act: Callable[[Why], None] = lambda _why: None) -> None:
        self.rhythm = Rhythm()
        self.why: Why | None = None
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
        moved = self.rhythm.note(run, now)
        lost = _lost(self.why) and now - self._suspected < LOSS_SECONDS
        well = not self.rhythm.slow and not (_slow(self.why) and self._lately(now)) and not lost
        if moved and self.why is not None and well:
            self._settle(None)
        if run.finished is not None or (self._asking is not None and not self._asking.done()):
            return
        if self.rhythm.due(run, now):
            self._asking = asyncio.create_task(self._look(self.rhythm.moved))
        elif not lost and self._suspicious(now):
            self._looked = now
            self._asking = asyncio.create_task(self._look_at_loss())

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    def _lately(self, now: float) -> bool:
        """A run that is slow moves all the same: its verdict stays until it has been well for a while."""
        return now - self._settled < STAYS_SECONDS

    def _suspicious(self, now: float) -> bool:
        lately = self._suspected > self._looked and now - self._suspected < STAYS_SECONDS
        return lately and now - self._looked >= SUSPECT_SECONDS

    async def _look(self, moved: float) -> None:
        why = await self._ask()
        if _busy(self.why) and _told(why) is not None:
            # A checkpoint or an evaluation may have ended this moment: whoever goes on now is seen to within a second.
            await asyncio.sleep(GOES_ON_SECONDS)
            why = await self._ask() if self.rhythm.moved == moved else why
        if self.rhythm.moved != moved and not self.rhythm.slow:
            # It went on while we asked.
            return
        self._settle(why)

    async def _look_at_loss(self) -> None:
        why = await self._ask()
        if _lost(why):
            self._settle(why)

    def _settle(self, why: Why | None) -> None:
        """Tells what is new: another cause, or other nodes and ranks."""
        before, after = _told(self.why), _told(why)
        if before is not None and after is None and why is not None and self.rhythm.slow and _slow(self.why):
            # Still slow: one look that saw nothing does not take it back.
            return
        self.why = why
        self._settled = time()
        if not same_verdict(before, after):
            self._since = time()
            self._tell(after)
        elif why is not None and after is not None and _stays(after, time() - self._since):
            self._act(why)


def _told(why: Why | None) -> Finding | None:
    """What is worth a word by itself; a run that merely takes its time isn't."""
    first = why.findings[0] if why is not None and why.findings else None
    return first if first is not None and first.severity > Severity.INFO else None


def _stays(finding: Finding, seconds: float) -> bool:
    return finding.severity is Severity.BLOCK and seconds >= STAYS_SECONDS


def _busy(why: Why | None) -> bool:
    """Whether the last look found somebody at work that others waited for."""
    return why is not None and bool(why.findings) and why.findings[0].code == hang.BUSY.code


def _lost(why: Why | None) -> bool:
    return why is not None and bool(why.findings) and why.findings[0].code.startswith(LOSS)


def _slow(why: Why | None) -> bool:
    return why is not None and bool(why.findings) and why.findings[0].code.startswith(SLOW)
