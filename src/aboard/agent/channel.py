"""A channel: frames in and out of non-blocking descriptors, inside the loop."""

from __future__ import annotations

import os
from collections import deque
from itertools import islice

from aboard.agent import frames
from aboard.agent.event_loop import EventLoop

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

CHUNK = 128 * 1024
# At most IOV_MAX, which is 1024.
MOST_PARTS = 64


def read_peer(connection: socket.socket) -> tuple[int, int]:
    """The pid and user of whoever connected, or of whoever listens: unix(7)."""
    import socket  # noqa: PLC0415 - a check pays for each import

    pid, uid, _gid = memoryview(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)).cast("i")
    return pid, uid


class Channel:
    """Passes each frame body to `on_body`; calls `on_close` once when the peer closes or violates the protocol."""

    def __init__(
        self,
        loop: EventLoop,
        fds: tuple[int, int],
        on_body: Callable[[bytes], None],
        on_close: Callable[[], None],
        splitter: frames.FrameSplitter | None = None,
    ) -> None:
        self.open = True
        self._loop = loop
        self._in, self._out = fds
        self._on_body = on_body
        self._on_close = on_close
        self._splitter = splitter or frames.FrameSplitter()
        # Parts of frames, not copied: most of what is relayed are files.
        self._unsent: deque[memoryview] = deque()
        self._write_closed = False
        self.on_drained: Callable[[], None] | None = None
        for fd in set(fds):
            os.set_blocking(fd, False)
        loop.on_readable(self._in, self._readable)

    def send(self, message: frames.Message) -> None:
        self.send_raw(frames.pack(message))

    def send_body(self, body: bytes) -> None:
        self._send_parts(len(body).to_bytes(frames.HEADER, "big"), body)

    def send_raw(self, data: bytes) -> None:
        self._send_parts(data)

    @property
    def unsent(self) -> int:
        return sum(map(len, self._unsent))

    def pause(self) -> None:
        """Stops reading, so that data from a flooding peer waits in its own socket."""
        self._loop.on_readable(self._in, None)

    def resume(self) -> None:
        if self.open:
            self._loop.on_readable(self._in, self._readable)

    def close(self) -> None:
        """Closes without calling `on_close`; safe to call again."""
        if self.open:
            self.open = False
            for fd in {self._in, self._out}:
                self._loop.remove_fd(fd)
                os.close(fd)

    def _send_parts(self, *parts: bytes) -> None:
        if not self.open or self._write_closed:
            return
        self._unsent.extend(map(memoryview, parts))
        self._flush()

    def _readable(self) -> None:
        try:
            data = os.read(self._in, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self._fail()

    def _take(self, data: bytes) -> None:
        try:
            bodies = self._splitter.feed(data)
        except frames.FrameError:
            self._fail()
            return
        for body in bodies:
            if self.open:
                self._on_body(body)

    def _writable(self) -> None:
        self._flush()
        if self.open and not self._unsent:
            self._loop.on_writable(self._out, None)
            # From the loop only: a sender that is called back while it sends would recurse endlessly.
            if self.on_drained is not None:
                self.on_drained()

    def _flush(self) -> None:
        try:
            while self._unsent:
                written = os.writev(self._out, list(islice(self._unsent, MOST_PARTS)))
                while self._unsent and written >= len(self._unsent[0]):
                    written -= len(self._unsent.popleft())
                if written:
                    self._unsent[0] = self._unsent[0][written:]
        except BlockingIOError:
            self._loop.on_writable(self._out, self._writable)
        except OSError:
            self._stop_writing()

    def _stop_writing(self) -> None:
        """The peer no longer reads; what it sent before can still be read."""
        self._write_closed = True
        self._unsent.clear()
        self._loop.on_writable(self._out, None)
        if self._in != self._out:
            self._fail()

    def _fail(self) -> None:
        if self.open:
            self.close()
            self._on_close()
