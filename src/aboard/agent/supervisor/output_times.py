"""When which part of a stream came: a few times by offset, enough to merge the outputs of many ranks by time."""

from __future__ import annotations

from bisect import bisect_right

# Bytes that came closer together than this count as one; clocks of two nodes agree no better.
CLOSE_SECONDS = 0.01
# One piece of output has one time: what came later than this goes into another piece.
SPAN_SECONDS = 0.1
LIMIT = 4096


class ArrivalTimes:
    """Bounded: when there are too many, the closest ones go, and the bytes behind them count as a little earlier."""

    def __init__(self, wall: float) -> None:
        self._offsets = [0]
        self._walls = [wall]

    def add(self, offset: int, wall: float) -> None:
        """The bytes from `offset` on came at `wall`; a clock that is set back changes the order of nothing."""
        if offset == self._offsets[-1]:
            self._walls[-1] = wall
        elif not 0 <= wall - self._walls[-1] < CLOSE_SECONDS:
            self._offsets.append(offset)
            self._walls.append(wall)
            if len(self._offsets) > LIMIT:
                self._thin()

    def at(self, offset: int) -> float:
        return self._walls[bisect_right(self._offsets, offset) - 1]

    def until(self, offset: int) -> int | None:
        """Where the bytes begin that came too late to go with those at `offset`; None if there are none."""
        first = bisect_right(self._offsets, offset) - 1
        for number in range(first + 1, len(self._offsets)):
            if abs(self._walls[number] - self._walls[first]) > SPAN_SECONDS:
                return self._offsets[number]
        return None

    def forget(self, offset: int) -> None:
        """What lies before `offset` was dropped, and nobody will ask for it again."""
        dropped = bisect_right(self._offsets, offset) - 1
        if dropped > 0:
            del self._offsets[:dropped], self._walls[:dropped]

    def _thin(self) -> None:
        """Half as many, evenly over the time; the newest is kept as it is."""
        gap = abs(self._walls[-1] - self._walls[0]) / (LIMIT // 2)
        remaining = [0]
        for number in range(1, len(self._walls) - 1):
            if abs(self._walls[number] - self._walls[remaining[-1]]) >= gap:
                remaining.append(number)
        # A clock that jumps to and fro could keep them all.
        remaining = [*remaining[: LIMIT // 2], len(self._walls) - 1]
        self._offsets = [self._offsets[number] for number in remaining]
        self._walls = [self._walls[number] for number in remaining]
