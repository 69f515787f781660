"""A loop over file descriptors, timers and signals; asyncio would cost each node 50 ms of CPU to import."""

from __future__ import annotations

import contextlib
import heapq
import os
import select
import signal
import time

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable

    Callback = Callable[[], None]

# poll(2) takes milliseconds as an int, which overflows after 24 days; a lease may be longer.
LONGEST_WAIT = 3600.0


class EventLoop:
    """Runs callbacks until it is stopped: readable and writable descriptors, timers, signals."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._readers: dict[int, Callback] = {}
        self._writers: dict[int, Callback] = {}
        self._timers: list[tuple[float, int, Callback]] = []
        self._count = 0
        self._running = True
        self._signals: dict[int, Callback] = {}
        self._calls: list[Callback] = []
        self._wake, self._wake_end = os.pipe()
        for end in (self._wake, self._wake_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._wake_end, warn_on_full_buffer=False)
        self.on_readable(self._wake, self._run_signal_callbacks)

    def on_readable(self, fd: int, callback: Callback | None) -> None:
        self._set(self._readers, fd, callback)

    def on_writable(self, fd: int, callback: Callback | None) -> None:
        self._set(self._writers, fd, callback)

    def remove_fd(self, fd: int) -> None:
        self.on_readable(fd, None)
        self.on_writable(fd, None)

    def on_signal(self, number: int, callback: Callback) -> None:
        self._signals[number] = callback
        # The handler itself does nothing; the number arrives through the wake-up pipe.
        signal.signal(number, lambda _number, _frame: None)

    def later(self, seconds: float, callback: Callback) -> None:
        self._count += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._count, callback))

    def call_from_thread(self, callback: Callback) -> None:
        """Runs it in the loop's thread, soon."""
        self._calls.append(callback)
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_end, b"\0")

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        while self._running:
            wait = self._timers[0][0] - time.monotonic() if self._timers else LONGEST_WAIT
            for fd, _events in self._poll.poll(min(max(0.0, wait), LONGEST_WAIT) * 1000 + 1):
                # Looked up at call time: an earlier callback of this round may have closed the descriptor.
                for callbacks in (self._readers, self._writers):
                    callback = callbacks.get(fd)
                    if callback is not None:
                        callback()
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2]()

    def _set(self, callbacks: dict[int, Callback], fd: int, callback: Callback | None) -> None:
        if callback is None:
            callbacks.pop(fd, None)
        else:
            callbacks[fd] = callback
        mask = (select.POLLIN if fd in self._readers else 0) | (select.POLLOUT if fd in self._writers else 0)
        if mask:
            self._poll.register(fd, mask)
        else:
            with contextlib.suppress(KeyError):
                self._poll.unregister(fd)

    def _run_signal_callbacks(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in set(os.read(self._wake, 4096)):
                callback = self._signals.get(number)
                if callback is not None:
                    callback()
        while self._calls:
            self._calls.pop(0)()
