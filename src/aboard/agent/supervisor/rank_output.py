"""A child's output: read at once, spooled to disk, sent when the head has room for it."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable

from aboard.agent import frames
from aboard.agent.event_loop import EventLoop
from aboard.agent.secret_redaction import Redactor
from aboard.agent.supervisor.output_spool import OutputSpool

CHUNK = 65536
SEND = 32768
# Bytes that came closer together than this count as one; clocks of two nodes agree no better.
CLOSE_SECONDS = 0.01
# One chunk of output has one time: what arrived later than this goes into another chunk.
SPAN_SECONDS = 0.1
TIMES_LIMIT = 4096


class RankOutput:
    """One stream of one child. The child never waits for us; the spool bounds what we keep."""

    def __init__(
        self,
        loop: EventLoop,
        name: tuple[str, str],
        spool: OutputSpool,
        secrets: Iterable[str],
        on_more: Callable[[], None],
    ) -> None:
        self.name = name
        self.finished = False
        # Whether everything, including the end, was sent to the head.
        self.end_sent = False
        self._loop = loop
        self._spool = spool
        self._times = ArrivalTimes(time.time())
        self._redactor = Redactor(secrets)
        self._on_more = on_more
        self._sent = 0
        self._fd, self.write_end = os.pipe()
        os.set_blocking(self._fd, False)

    def start_reading(self) -> None:
        os.close(self.write_end)
        self._loop.on_readable(self._fd, self._drain)

    def rewind(self, offset: int) -> None:
        """Continues at the offset that the head already has, at most the end."""
        self._sent = max(0, min(offset, self._spool.end))
        self.end_sent = False

    def next_frame(self, room: int) -> frames.Message | None:
        """The next chunk to send, at most `room` bytes, or None if there is nothing new."""
        child, stream = self.name
        start = max(self._sent, self._spool.start)
        later = self._times.until(start)
        size = min(room, SEND) if later is None else min(room, SEND, later - start)
        offset, data = self._spool.read(self._sent, size)
        frame = {"out": child, "stream": stream, "offset": offset, "wall": self._times.at(offset), "data": ""}
        if data or offset != self._sent:
            frame["data"] = frames.bytes_to_text(data)
            if offset != self._sent:
                frame["dropped"] = offset - self._sent
            self._sent = offset + len(data)
            return frame
        if self.finished and not self.end_sent:
            self.end_sent = True
            frame["end"] = True
            return frame
        return None

    def release(self) -> None:
        """Drops the data once the head has all of it; only length and end remain."""
        if self.end_sent:
            self._spool.release()
            self._times.drop_before(self._spool.end)

    def close(self) -> None:
        if not self.finished:
            self._finish()
        self._spool.close()

    def _drain(self) -> None:
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return
        if data:
            self._append(self._redactor.feed(data))
        else:
            self._finish()
        self._on_more()

    def _append(self, data: bytes) -> None:
        if data:
            self._times.add(self._spool.end, time.time())
            self._spool.append(data)
            self._times.drop_before(self._spool.start)

    def _finish(self) -> None:
        self._append(self._redactor.flush())
        self._times.add(self._spool.end, time.time())
        self.finished = True
        self._loop.remove_fd(self._fd)
        os.close(self._fd)


class ArrivalTimes:
    """When which part of a stream arrived, for merging ranks by time; bounded by dropping the closest entries."""

    def __init__(self, wall: float) -> None:
        self._offsets = [0]
        self._walls = [wall]

    def add(self, offset: int, wall: float) -> None:
        """The bytes from `offset` on arrived at `wall`; a clock that is set back does not change the order."""
        if offset == self._offsets[-1]:
            self._walls[-1] = wall
        elif not 0 <= wall - self._walls[-1] < CLOSE_SECONDS:
            self._offsets.append(offset)
            self._walls.append(wall)
            if len(self._offsets) > TIMES_LIMIT:
                self._thin()

    def at(self, offset: int) -> float:
        return self._walls[bisect_right(self._offsets, offset) - 1]

    def until(self, offset: int) -> int | None:
        """The offset of the first byte that arrived too late to share a chunk with those at `offset`, or None."""
        first = bisect_right(self._offsets, offset) - 1
        for number in range(first + 1, len(self._offsets)):
            if abs(self._walls[number] - self._walls[first]) > SPAN_SECONDS:
                return self._offsets[number]
        return None

    def drop_before(self, offset: int) -> None:
        """Forgets the times of bytes before `offset`, which were dropped."""
        dropped = bisect_right(self._offsets, offset) - 1
        if dropped > 0:
            del self._offsets[:dropped], self._walls[:dropped]

    def _thin(self) -> None:
        """Drops half of the entries, evenly over time; keeps the newest."""
        gap = abs(self._walls[-1] - self._walls[0]) / (TIMES_LIMIT // 2)
        remaining = [0]
        for number in range(1, len(self._walls) - 1):
            if abs(self._walls[number] - self._walls[remaining[-1]]) >= gap:
                remaining.append(number)
        # A clock that jumps back and forth could prevent that from dropping any.
        remaining = [*remaining[: TIMES_LIMIT // 2], len(self._walls) - 1]
        self._offsets = [self._offsets[number] for number in remaining]
        self._walls = [self._walls[number] for number in remaining]
