"""A child's output: read at once, spooled to disk, sent when the head has room for it."""

from __future__ import annotations

import os

from aboard.agent import frames
from aboard.agent.loop import Loop
from aboard.agent.redact import Redactor
from aboard.agent.spool import Spool

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CHUNK = 65536
SEND = 32768


class Output:
    """One stream of one child. The child never waits for us, and we never hold more than `limit` of it."""

    def __init__(
        self,
        loop: Loop,
        name: tuple[str, str],
        spool: Spool,
        secrets: Iterable[str],
        on_more: Callable[[], None],
    ) -> None:
        self.name = name
        self.finished = False
        self._told_end = False
        self._loop = loop
        self._spool = spool
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
        return self._told_end

    def rewind(self, offset: int) -> None:
        """A new bridge says what the head already has; more than there is can only be a mistake."""
        self._sent = max(0, min(offset, self._spool.end))
        self._told_end = False

    def next_frame(self, room: int) -> frames.Message | None:
        """The next piece to send, at most `room` bytes of it, or None while there is nothing new."""
        child, stream = self.name
        offset, data = self._spool.read(self._sent, min(room, SEND))
        if data or offset != self._sent:
            frame = {"out": child, "stream": stream, "offset": offset, "data": frames.text(data)}
            if offset != self._sent:
                frame["dropped"] = offset - self._sent
            self._sent = offset + len(data)
            return frame
        if self.finished and not self._told_end:
            self._told_end = True
            return {"out": child, "stream": stream, "offset": offset, "data": "", "end": True}
        return None

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
            self._spool.append(self._redactor.feed(data))
        else:
            self._finish()
        self._on_more()

    def _finish(self) -> None:
        self._spool.append(self._redactor.flush())
        self.finished = True
        self._loop.forget(self._fd)
        os.close(self._fd)
