"""Slurm's notice that it cancels a step of ours: outside of a batch script it is the only one."""

import asyncio
import re
from weakref import WeakKeyDictionary

# A lost node is noticed by its silence, and named by it.
_CANCELLED = re.compile(
    r"slurmstepd\S{0,255}: error: \*\*\* (?:JOB|STEP) \S{1,64} ON \S{1,255} CANCELLED AT (?!.*DUE TO NODE FAILURE)"
)


class CancelNotice:
    """Given once, when Slurm cancels a step of this event loop."""

    def __init__(self) -> None:
        self._given = asyncio.Event()
        #: What Slurm said, "" until then; it may end with a reason.
        self.line = ""

    def give(self, line: str) -> None:
        self.line = self.line or line
        self._given.set()

    async def wait(self, seconds: float | None) -> bool:
        """Waits for it; False when the time is over."""
        try:
            return await asyncio.wait_for(self._given.wait(), seconds)
        except TimeoutError:
            return False


_NOTICES: "WeakKeyDictionary[asyncio.AbstractEventLoop, CancelNotice]" = WeakKeyDictionary()


def find_cancel_notice() -> CancelNotice:
    """The notice of this event loop."""
    return _NOTICES.setdefault(asyncio.get_running_loop(), CancelNotice())


def is_cancel_notice(line: str) -> bool:
    """Whether this line of srun's stderr says that Slurm cancels the step."""
    return _CANCELLED.search(line) is not None
