"""Which attempt of a run a line of its output belongs to."""

from bisect import bisect_right
from contextlib import suppress
from math import inf
from pathlib import Path

from aboard.record.event_log import read_events


class AttemptTimes:
    """Reads when attempts started from a run's events, and again when these have grown, since a run may be live."""

    def __init__(self, events: Path) -> None:
        self._events = events
        self._size = -1
        self._starts: list[tuple[float, int]] = []

    def find_attempt(self, at: float) -> int | None:
        """The attempt during which this was printed; None while there was only one."""
        size = 0
        with suppress(OSError):
            size = self._events.stat().st_size
        if size != self._size:
            self._size = size
            starts = (event for event in read_events(self._events) if event.kind == "generation")
            self._starts = [(event.at, int(event.data.get("number", 0))) for event in starts]
        if len(self._starts) <= 1:
            return None
        return self._starts[max(0, bisect_right(self._starts, (at, inf)) - 1)][1]
