"""How long tests wait: deadlines that grow with what this machine is slower than an idle one, up to four times.

A test never sleeps for a time that is hoped to suffice, and never asserts how fast something is (that is a benchmark).
It polls a condition until a deadline, or states within which time something that could hang must have come back.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

MOST = 4.0
# What _spin() takes on an idle core of the machines that the deadlines were written on.
_IDLE_SECONDS = 0.2
# Most conditions start a process to look: the longer the wait, the rarer the looks, which delays it by a twentieth.
_LEAST_POLL_SECONDS, _MOST_POLL_SECONDS = 0.05, 0.5


@cache
def slowness() -> float:
    """How many times slower this process runs than alone on an idle machine, from 1 to 4; measured once.

    The test session measures at its start. Workers that run side by side start together, so each of them measures what
    the others leave to it.
    """
    began = time.monotonic()
    _spin()
    return min(MOST, max(1.0, (time.monotonic() - began) / _IDLE_SECONDS))


def wait_until(condition: Callable[[], object], seconds: float, what: str | Callable[[], object] = "") -> None:
    """Polls until the condition holds; fails with `what` was waited for when the scaled deadline has passed."""
    limit = seconds * slowness()
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < limit, f"not within {limit:.1f} s: {what() if callable(what) else what}"
        time.sleep(min(_MOST_POLL_SECONDS, max(_LEAST_POLL_SECONDS, waited / 20)))


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """As `wait_until`, for tests that share an event loop with what they wait for."""
    async with asyncio.timeout(seconds * slowness()):
        while not condition():  # noqa: ASYNC110 - polls a process, which has no event
            await asyncio.sleep(_LEAST_POLL_SECONDS)


@contextmanager
def within(seconds: float, *, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """The block must come back within the scaled deadline: it bounds a wait that would otherwise be far longer.

    For a block that only computes, `clock` is `time.process_time`: other processes must not count.
    """
    limit = seconds * slowness()
    began = clock()
    yield
    took = clock() - began
    assert took < limit, f"took {took:.1f} s, must be below {limit:.1f} s"


def _spin() -> int:
    total = 0
    for number in range(4_000_000):
        total ^= number
    return total
