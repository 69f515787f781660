"""Slurm's notice that it cancels a step of ours: outside of a batch script it is the only one."""

import asyncio
import re
from weakref import WeakKeyDictionary

# A lost node is noticed by its silence, and named by it.
_CANCELLED = re.compile(r"slurmstepd\S*: error: \*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT (?!.*DUE TO NODE FAILURE)")

_NOTICES: "WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Event]" = WeakKeyDictionary()


def find_cancel_notice() -> asyncio.Event:
    """The event of this event loop that is set when Slurm cancels one of its steps."""
    return _NOTICES.setdefault(asyncio.get_running_loop(), asyncio.Event())


def is_cancel_notice(line: str) -> bool:
    """Whether this line of srun's stderr says that Slurm cancels the step."""
    return _CANCELLED.search(line) is not None
