"""The stall monitor: requests a judgement when a run's progress stalls, and reports each new verdict once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import time

from aboard.core.evidence.verdict import SLOW, Judgement, is_same_verdict
from aboard.core.run.run_state import Run
from aboard.core.run.stall_detector import StallDetector
from aboard.diagnoses import Finding, Severity
from aboard.doctor.hang import diagnoses as hang

_LOG = logging.getLogger(__name__)

AskWhy = Callable[[], Awaitable[Judgement]]
ReportVerdict = Callable[[Finding | None], None]
# A run is stopped if its verdict lasts this long, and restarted only later: it could still recover by itself.
STAYS_SECONDS = 5.0
RESTART_SECONDS = 60.0
# How old the last judgement may be when a verdict is acted upon.
FRESH_SECONDS = 5.0
LOSS = "loss-"
GOES_ON_SECONDS = 1.5
# A run with a non-finite loss still progresses; the verdict stands while the loss keeps being printed.
LOSS_SECONDS = 60.0
SUSPECT_SECONDS = 2.0


class StallMonitor:
    """Monitors one run: calls `report` with each new verdict, or None on progress, and `act` with one that lasts.

    `stays` is how long that is.
    """

    def __init__(
        self,
        ask: AskWhy,
        report: ReportVerdict,
        act: Callable[[Judgement], None] | None = None,
        *,
        stays: float = STAYS_SECONDS,
    ) -> None:
        self.rhythm = StallDetector()
        self.why: Judgement | None = None
        self._ask = ask
        self._report = report
        self._act = act
        self._stays = stays
        self._asking: asyncio.Task[None] | None = None
        self._since = 0.0
        self._settled = 0.0
        self._suspected = self._loss_judged = float("-inf")

    @property
    def verdict(self) -> Finding | None:
        """The verdict that stands, as it was last judged."""
        return _get_reportable(self.why)

    @property
    def acts_at(self) -> float | None:
        """When the verdict is acted upon, if it stands until then."""
        verdict = self.verdict
        is_stuck = self._act is not None and verdict is not None and verdict.severity is Severity.BLOCK
        return self._since + self._stays if is_stuck else None

    def suspect(self, now: float) -> None:
        """Notes that a rank printed a suspicious loss, which needs a judgement although the run progresses."""
        self._suspected = now

    def tick(self, run: Run, now: float) -> None:
        """Called several times a second; never blocks."""
        moved = self.rhythm.update(run, now)
        bad_loss = _get_code(self.why).startswith(LOSS) and now - self._suspected < LOSS_SECONDS
        well = (
            not self.rhythm.slow
            and not (_get_code(self.why).startswith(SLOW) and self._is_recently_settled(now))
            and not bad_loss
        )
        if moved and self.why is not None and well:
            self._settle(None)
        if run.finished is not None or (self._asking is not None and not self._asking.done()):
            return
        if self.rhythm.due(run, now) or self._is_action_due(now):
            self._asking = asyncio.create_task(self._judge_stall(self.rhythm.moved))
        elif not bad_loss and self._has_new_suspicion(now):
            self._loss_judged = now
            self._asking = asyncio.create_task(self._judge_loss())

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    def _is_action_due(self, now: float) -> bool:
        """Whether a verdict would be acted upon, if another look confirms it."""
        return self.acts_at is not None and now >= self.acts_at and now - self._settled >= FRESH_SECONDS

    def _is_recently_settled(self, now: float) -> bool:
        """A slow run still progresses, so its verdict stands until the run has been healthy for a while."""
        return now - self._settled < STAYS_SECONDS

    def _has_new_suspicion(self, now: float) -> bool:
        lately = self._suspected > self._loss_judged and now - self._suspected < STAYS_SECONDS
        return lately and now - self._loss_judged >= SUSPECT_SECONDS

    async def _judge_stall(self, moved: float) -> None:
        why = await self._ask()
        # A rank was busy, and the others waited for it.
        if _get_code(self.why) == hang.BUSY.code and _get_reportable(why) is not None:
            # A checkpoint or an evaluation may just have ended: if so, progress resumes within a second.
            await asyncio.sleep(GOES_ON_SECONDS)
            why = await self._ask() if self.rhythm.moved == moved else why
        if self.rhythm.moved != moved and not self.rhythm.slow:
            _LOG.debug("the run progressed while it was judged: the judgement is dropped")
            return
        self._settle(why)

    async def _judge_loss(self) -> None:
        why = await self._ask()
        if _get_code(why).startswith(LOSS):
            self._settle(why)

    def _settle(self, judgement: Judgement | None) -> None:
        """Reports a verdict if it is new: another cause, or other nodes or ranks."""
        before, after = _get_reportable(self.why), _get_reportable(judgement)
        if (
            before is not None
            and after is None
            and judgement is not None
            and self.rhythm.slow
            and _get_code(self.why).startswith(SLOW)
        ):
            _LOG.debug("still slow: one snapshot without findings does not withdraw the verdict")
            return
        if after is None:
            self.rhythm.accept_pace(time())
        self.why = judgement
        self._settled = time()
        if not is_same_verdict(before, after):
            self._since = time()
            _LOG.info("the verdict is now %s", "withdrawn" if after is None else after.code)
            self._report(after)
        elif judgement is not None and self._act is not None and self.acts_at is not None and time() >= self.acts_at:
            _LOG.info("the verdict stood for %.0f s: acting on it", time() - self._since)
            self._act(judgement)


def _get_reportable(judgement: Judgement | None) -> Finding | None:
    """The verdict, if it is worth reporting unasked; a run that is only busy is not."""
    first = judgement.findings[0] if judgement is not None and judgement.findings else None
    return first if first is not None and first.severity > Severity.INFO else None


def _get_code(judgement: Judgement | None) -> str:
    return judgement.findings[0].code if judgement is not None and judgement.findings else ""
