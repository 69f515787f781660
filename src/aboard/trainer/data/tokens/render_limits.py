"""Bounds the time and the memory that a chat template takes for one row: it is somebody else's program."""

import resource
import signal
import threading
from collections.abc import Callable
from typing import Self, TypeVar

from aboard.core.text.byte_sizes import GIB
from aboard.trainer.data.intake.memory_limit import set_memory_limit

T = TypeVar("T")
# A row of the largest size takes below a second, and 20 MB.
RENDER_SECONDS = 10.0
RENDER_BYTES = GIB
_TICKS = 10


class RenderLimitError(Exception):
    """A template exceeded a limit, which the message names."""


class _OvertimeError(BaseException):
    """Not an Exception: Jinja catches those while it folds constants."""


class RenderLimits:
    """Limits each call of `run` while the context is open.

    It is set up once for many rows, because its system calls take longer than a render. Only a process's main thread
    can be interrupted: elsewhere only memory is limited.
    """

    def __init__(self) -> None:
        self._row = self._seen = self._ticks = 0
        self._timed = threading.current_thread() is threading.main_thread()
        self._before = resource.getrlimit(resource.RLIMIT_AS)

    def __enter__(self) -> Self:
        self._limit_memory()
        if self._timed:
            signal.signal(signal.SIGVTALRM, self._tick)
            signal.setitimer(signal.ITIMER_VIRTUAL, RENDER_SECONDS / _TICKS, RENDER_SECONDS / _TICKS)
        return self

    def __exit__(self, *_: object) -> None:
        self._row += 1
        if self._timed:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_AS, self._before)

    def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, which renders one row."""
        self._row += 1
        try:
            try:
                return work()
            except MemoryError:
                # The rows before it may have used up the memory.
                self._limit_memory()
                return work()
        except _OvertimeError:
            raise RenderLimitError(f"more than {RENDER_SECONDS:g} s of processor time") from None
        except MemoryError:
            raise RenderLimitError(f"more than {RENDER_BYTES // GIB} GB of memory") from None

    def _tick(self, *_: object) -> None:
        self._ticks = self._ticks + 1 if self._row == self._seen else 0
        self._seen = self._row
        if self._ticks >= _TICKS:
            self._ticks = 0
            raise _OvertimeError

    def _limit_memory(self) -> None:
        set_memory_limit(self._before, RENDER_BYTES)
