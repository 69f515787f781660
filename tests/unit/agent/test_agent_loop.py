"""The agent's own loop: descriptors, timers, signals."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from aboard.agent.event_loop import EventLoop


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    """A loop that gives the process its signals back."""
    before = signal.getsignal(signal.SIGUSR1)
    yield EventLoop()
    signal.signal(signal.SIGUSR1, before)
    signal.set_wakeup_fd(-1)


def test_timers_run_in_the_order_of_their_time(loop: EventLoop) -> None:
    """The soonest first; of two at the same time, the one that was set first."""
    ran: list[str] = []
    loop.later(0.02, lambda: ran.append("late"))
    loop.later(0.03, loop.stop)
    loop.later(0.0, lambda: ran.append("first"))
    loop.later(0.0, lambda: ran.append("second"))
    loop.run()
    assert ran == ["first", "second", "late"]


def test_a_timer_of_months_does_not_break_the_wait(loop: EventLoop) -> None:
    """poll(2) counts milliseconds in an int: a lease of 30 days must not overflow it."""
    loop.later(30 * 86400.0, lambda: None)
    loop.on_signal(signal.SIGUSR1, loop.stop)
    os.kill(os.getpid(), signal.SIGUSR1)
    loop.run()


def test_a_descriptor_that_was_forgotten_in_the_same_round_is_not_called(loop: EventLoop) -> None:
    """Two are readable at once and the first one's callback closes the second: nobody reads a closed descriptor."""
    pipes = [os.pipe(), os.pipe()]
    ran: list[int] = []

    def read(own: int, other: int) -> None:
        ran.append(own)
        loop.remove_fd(other)
        loop.stop()

    (first, _), (second, _) = pipes
    loop.on_readable(first, lambda: read(first, second))
    loop.on_readable(second, lambda: read(second, first))
    for _, end in pipes:
        os.write(end, b"x")
    loop.run()
    assert len(ran) == 1
    for pipe in pipes:
        for fd in pipe:
            os.close(fd)


def test_signals_that_come_together_are_told_once(loop: EventLoop) -> None:
    """A hundred SIGCHLDs before the loop looks are one call, which has to look at all children anyway."""
    ran: list[float] = []
    loop.on_signal(signal.SIGUSR1, lambda: ran.append(time.monotonic()))
    for _ in range(100):
        os.kill(os.getpid(), signal.SIGUSR1)
    loop.later(0.02, loop.stop)
    loop.run()
    assert len(ran) == 1


def test_a_writer_waits_for_room(loop: EventLoop) -> None:
    """A full pipe calls back only when its reader has taken something."""
    out, into = os.pipe()
    os.set_blocking(into, False)
    os.set_blocking(out, False)
    while True:
        try:
            os.write(into, b"x" * 65536)
        except BlockingIOError:
            break
    taken: list[int] = []

    def written() -> None:
        taken.append(0)
        loop.stop()

    loop.on_writable(into, written)
    loop.later(0.01, lambda: taken.append(len(os.read(out, 1 << 20))))
    loop.run()
    assert taken[0] > 0
    os.close(out)
    os.close(into)
