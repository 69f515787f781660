"""Prefetches the next steps: a thread reads and collates them in order while the model computes."""

from collections.abc import Callable, Iterator
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Generic, Self, TypeVar

Planned = TypeVar("Planned")
Made = TypeVar("Made")

# Steps that are ready beforehand: one to take, one being made.
_DEPTH = 2
# How long the thread may take to notice that it is closed, and its polling interval.
_PATIENCE, _LOOK = 30.0, 0.1


class Prefetcher(Generic[Planned, Made]):
    """Iterates over `make(each)`; an error in the thread is raised in place of its result."""

    def __init__(self, planned: Iterator[Planned], make: Callable[[Planned], Made]) -> None:
        self._ready: Queue[tuple[Made | None, BaseException | None]] = Queue(_DEPTH)
        self._closed = Event()
        self._thread = Thread(target=self._work, args=(planned, make), name="prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Made]:
        while True:
            result, error = self._next()
            if error is not None:
                raise error
            if result is None:
                return
            yield result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join(_PATIENCE)

    def _next(self) -> tuple[Made | None, BaseException | None]:
        while True:
            try:
                return self._ready.get(timeout=_PATIENCE)
            except Empty:
                # A slow disk is not an error: reading raises by itself, or shows in the stacks.
                if not self._thread.is_alive():
                    raise

    def _work(self, planned: Iterator[Planned], make: Callable[[Planned], Made]) -> None:
        try:
            for each in planned:
                if not self._put((make(each), None)):
                    return
            self._put((None, None))
        except BaseException as error:  # noqa: BLE001 - it is raised again, in the thread that takes the results
            self._put((None, error))

    def _put(self, result: tuple[Made | None, BaseException | None]) -> bool:
        while not self._closed.is_set():
            try:
                self._ready.put(result, timeout=_LOOK)
            except Full:
                continue
            return True
        return False
