"""An authenticated connection to a peer: both sides announce, request and send pieces."""

from __future__ import annotations

import os
import socket
import time
from collections import deque

from aboard.agent.event_loop import EventLoop

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from typing import Protocol, Union

    Outgoing = Union[bytes, tuple[int, int, int]]

    class PieceOwner(Protocol):
        """The exchange that a connection belongs to."""

        received: int

        def has(self, piece: int) -> bool: ...
        def locate(self, piece: int) -> tuple[int, int, int]: ...
        def take(self, peer: PeerConnection, piece: int, data: memoryview) -> None: ...
        def note_announcement(self, peer: PeerConnection, piece: int) -> None: ...
        def drop(self, peer: PeerConnection) -> None: ...


# A message is one of these letters and a piece's number; behind DATA come the bytes of the piece.
HAVE, REQUEST, DATA = b"H", b"R", b"D"
NUMBER_BYTES = 4
MESSAGE_BYTES = 1 + NUMBER_BYTES
SMALL_READ = 4096
# How much one connection sends before the others have their turn.
TURN_BYTES = 1024 * 1024
# A peer of ours has fewer requests open, and an honest one announces each piece once.
MOST_QUEUED = 16
MOST_PIECES = 1 << 20


class PeerConnection:
    """Passes what the peer says to the exchange; closes at the first message that makes no sense."""

    def __init__(self, loop: EventLoop, link: socket.socket, peer: int, dialer: int, exchange: PieceOwner) -> None:
        self.peer = peer
        self.dialer = dialer
        self.open = True
        # Pieces that the peer has; those of them that we want and nobody sends us yet; and when we asked for which.
        self.has: set[int] = set()
        self.useful: set[int] = set()
        self.asked: dict[int, float] = {}
        self.heard = time.monotonic()
        self._loop = loop
        self._link = link
        self._exchange = exchange
        self._small = b""
        self._piece = -1
        self._data = memoryview(b"")
        self._at = 0
        self._outgoing: deque[Outgoing] = deque()
        self._queued = 0
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.on_readable(link.fileno(), self._readable)

    def announce(self, pieces: list[int]) -> None:
        self._send(b"".join(HAVE + piece.to_bytes(NUMBER_BYTES, "big") for piece in pieces))

    def request(self, piece: int) -> None:
        if not self.asked:
            self.heard = time.monotonic()
        self.asked[piece] = time.monotonic()
        self._send(REQUEST + piece.to_bytes(NUMBER_BYTES, "big"))

    def close(self) -> None:
        if self.open:
            self.open = False
            self._loop.remove_fd(self._link.fileno())
            self._link.close()
            self._exchange.drop(self)

    def _readable(self) -> None:
        try:
            if self._piece >= 0:
                count = self._link.recv_into(self._data[self._at :])
                self._at += count
            else:
                data = self._link.recv(SMALL_READ)
                count = len(data)
                self._small += data
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.close()
            return
        self.heard = time.monotonic()
        self._exchange.received += count
        self._parse()

    def _parse(self) -> None:
        while self.open:
            if self._piece >= 0:
                if self._at < len(self._data):
                    return
                piece, data, self._piece = self._piece, self._data, -1
                self._exchange.take(self, piece, data)
            elif len(self._small) < MESSAGE_BYTES:
                return
            else:
                kind, self._small = self._small[:MESSAGE_BYTES], self._small[MESSAGE_BYTES:]
                self._take_message(kind[:1], int.from_bytes(kind[1:], "big"))

    def _take_message(self, kind: bytes, piece: int) -> None:
        if kind == HAVE and piece < MOST_PIECES:
            self.has.add(piece)
            self._exchange.note_announcement(self, piece)
        elif kind == REQUEST and self._queued < MOST_QUEUED and self._exchange.has(piece):
            fd, at, length = self._exchange.locate(piece)
            self._queued += 1
            self._outgoing.append(DATA + piece.to_bytes(NUMBER_BYTES, "big"))
            self._outgoing.append((fd, at, length))
            self._flush()
        elif kind == DATA and piece in self.asked:
            self._piece = piece
            self._data = memoryview(bytearray(self._exchange.locate(piece)[2]))
            self._at = len(self._small[: len(self._data)])
            self._data[: self._at] = self._small[: self._at]
            self._small = self._small[self._at :]
        else:
            self.close()

    def _send(self, data: bytes) -> None:
        if self.open and data:
            self._outgoing.append(data)
            self._flush()

    def _flush(self) -> None:
        turn = TURN_BYTES
        try:
            while self._outgoing and turn > 0:
                first = self._outgoing[0]
                if isinstance(first, bytes):
                    sent = self._link.send(first)
                    rest: Outgoing = first[sent:]
                    left = len(first) - sent
                else:
                    fd, at, length = first
                    sent = os.sendfile(self._link.fileno(), fd, at, min(length, turn))
                    if not sent:
                        # The file is shorter now.
                        self.close()
                        return
                    rest, left = (fd, at + sent, length - sent), length - sent
                    self._queued -= not left
                turn -= sent
                if left:
                    self._outgoing[0] = rest
                else:
                    self._outgoing.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        self._loop.on_writable(self._link.fileno(), self._flush if self._outgoing else None)
