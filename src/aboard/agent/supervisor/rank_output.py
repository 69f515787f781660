"""A child's output: read at once, spooled to disk, sent when the head has room for it."""

from __future__ import annotations

import os
import time

from aboard.agent import frames
from aboard.agent.event_loop import EventLoop
from aboard.agent.secret_redaction import Redactor
from aboard.agent.supervisor.output_spool import OutputSpool
from aboard.agent.supervisor.output_times import ArrivalTimes

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CHUNK = 65536
SEND = 32768


class RankOutput:
    """One stream of one child. The child never waits for us, and we never hold more than `limit` of it."""

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
        self._end_sent = False
        self._loop = loop
        self._spool = spool
        self._marks = ArrivalTimes(time.time())
        self._redactor = Redactor(secrets)
        self._on_more = on_more
        self._sent = 0
        self._fd, self.write_end = os.pipe()
        os.set_blocking(self._fd, False)

    def follow(self) -> None:
        os.close(self.write_end)
        self._loop.on_readable(self._fd, self._drain)

    @property
    def told(self) -> bool:
        """Whether the head was sent all that there will ever be."""
        return self._end_sent

    def rewind(self, offset: int) -> None:
        """A new bridge says what the head already has; more than there is can only be a mistake."""
        self._sent = max(0, min(offset, self._spool.end))
        self._end_sent = False

    def next_frame(self, room: int) -> frames.Message | None:
        """The next piece to send, at most `room` bytes of it, or None while there is nothing new."""
        child, stream = self.name
        start = max(self._sent, self._spool.start)
        later = self._marks.until(start)
        size = min(room, SEND) if later is None else min(room, SEND, later - start)
        offset, data = self._spool.read(self._sent, size)
        frame = {"out": child, "stream": stream, "offset": offset, "wall": self._marks.at(offset), "data": ""}
        if data or offset != self._sent:
            frame["data"] = frames.bytes_to_text(data)
            if offset != self._sent:
                frame["dropped"] = offset - self._sent
            self._sent = offset + len(data)
            return frame
        if self.finished and not self._end_sent:
            self._end_sent = True
            frame["end"] = True
            return frame
        return None

    def release(self) -> None:
        """The head has all of it: only its length and its end are kept."""
        if self._end_sent:
            self._spool.release()
            self._marks.forget(self._spool.end)

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
            self._marks.add(self._spool.end, time.time())
            self._spool.append(data)
            self._marks.forget(self._spool.start)

    def _finish(self) -> None:
        self._append(self._redactor.flush())
        self._marks.add(self._spool.end, time.time())
        self.finished = True
        self._loop.forget(self._fd)
        os.close(self._fd)
