"""Mutual authentication of two nodes: each proves that it has the key that came over ssh, before anything else."""

from __future__ import annotations

import errno
import hmac
import os
import socket
from collections.abc import Callable

from aboard.agent.event_loop import EventLoop

NONCE_BYTES = 32
NUMBER_BYTES = 4
PROOF_BYTES = 32
ANSWER_BYTES = NONCE_BYTES + NUMBER_BYTES + PROOF_BYTES
HANDSHAKE_SECONDS = 1.0
SENDERS = (b"dialer sends", b"listener sends")

# The keys of a connection: of what this end sends, and of what it receives.
PeerKeys = tuple[bytes, bytes]
OnDone = Callable[[socket.socket, int, PeerKeys], None]
OnFailed = Callable[[str], None]


class PeerHandshake:
    """One side of a new connection; exactly the bytes of the handshake are read, and within a second."""

    def __init__(
        self, loop: EventLoop, link: socket.socket, key: bytes, me: int, on_done: OnDone, on_failed: OnFailed
    ) -> None:
        self._loop = loop
        self._link = link
        self._key = key
        self._me = me
        self._on_done = on_done
        self._on_failed = on_failed
        self._nonce = os.urandom(NONCE_BYTES)
        self._received = b""
        self._expected = 0
        self.open = True

    def fail(self, why: str) -> None:
        if self.open:
            self.open = False
            self._loop.remove_fd(self._link.fileno())
            self._link.close()
            self._on_failed(why)

    def _expect(self, count: int) -> None:
        self._received, self._expected = b"", count
        self._loop.on_readable(self._link.fileno(), self._readable)

    def _readable(self) -> None:
        try:
            data = self._link.recv(self._expected - len(self._received))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.fail("closed")
            return
        self._received += data
        if len(self._received) == self._expected:
            self._take(self._received)

    def _take(self, data: bytes) -> None:
        raise NotImplementedError

    def _send(self, data: bytes) -> None:
        try:
            # A few bytes always fit into a new connection's buffer.
            if self._link.send(data) != len(data):
                self.fail("closed")
        except OSError:
            self.fail("closed")

    def _finish(self, peer: int, keys: PeerKeys) -> None:
        if self.open:
            self.open = False
            self._loop.remove_fd(self._link.fileno())
            self._on_done(self._link, peer, keys)

    def _prove(self, role: bytes, listener_nonce: bytes, dialer_nonce: bytes, dialer: int, listener: int) -> bytes:
        """The role is part of it, so that no proof can be sent back to its sender."""
        ends = dialer.to_bytes(NUMBER_BYTES, "big") + listener.to_bytes(NUMBER_BYTES, "big")
        return hmac.digest(self._key, b"aboard peer " + role + listener_nonce + dialer_nonce + ends, "sha256")

    def _derive_keys(self, listener_nonce: bytes, dialer_nonce: bytes, dialer: int, listener: int) -> PeerKeys:
        """The keys of what the dialer and of what the listener sends after the handshake."""
        dialer_key, listener_key = (
            self._prove(role, listener_nonce, dialer_nonce, dialer, listener) for role in SENDERS
        )
        return dialer_key, listener_key


class ListenerHandshake(PeerHandshake):
    """The side that accepted: it sends a nonce, and its own proof only to a peer that proved itself."""

    def start(self) -> None:
        self._loop.later(HANDSHAKE_SECONDS, lambda: self.fail("silent"))
        self._expect(ANSWER_BYTES)
        self._send(self._nonce)

    def _take(self, data: bytes) -> None:
        nonce, number, proof = data[:NONCE_BYTES], data[NONCE_BYTES:-PROOF_BYTES], data[-PROOF_BYTES:]
        peer = int.from_bytes(number, "big")
        if not hmac.compare_digest(proof, self._prove(b"dial", self._nonce, nonce, peer, self._me)):
            self.fail("no proof")
            return
        self._send(self._prove(b"listen", self._nonce, nonce, peer, self._me))
        dialer, listener = self._derive_keys(self._nonce, nonce, peer, self._me)
        self._finish(peer, (listener, dialer))


class DialerHandshake(PeerHandshake):
    """The side that connects to `peer`."""

    def start(self, address: tuple[str, int], peer: int, connect_seconds: float) -> None:
        self._peer = peer
        self._listener_nonce = b""
        self._connecting = True
        self._loop.later(connect_seconds, self._stop_connecting)
        try:
            code = self._link.connect_ex(address)
        except (OSError, OverflowError):
            # No address, or no port.
            code = errno.EINVAL
        if code in (0, errno.EINPROGRESS):
            self._loop.on_writable(self._link.fileno(), self._connected)
        else:
            self.fail(os.strerror(code))

    def _stop_connecting(self) -> None:
        if self._connecting:
            self.fail("timed out")

    def _connected(self) -> None:
        code = self._link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.fail(os.strerror(code))
            return
        self._connecting = False
        self._loop.on_writable(self._link.fileno(), None)
        # The listener answers at once, or has more strangers than it can take.
        self._loop.later(2 * HANDSHAKE_SECONDS, lambda: self.fail("silent"))
        self._expect(NONCE_BYTES)

    def _take(self, data: bytes) -> None:
        if not self._listener_nonce:
            self._listener_nonce = data
            self._expect(PROOF_BYTES)
            proof = self._prove(b"dial", data, self._nonce, self._me, self._peer)
            self._send(self._nonce + self._me.to_bytes(NUMBER_BYTES, "big") + proof)
        elif hmac.compare_digest(data, self._prove(b"listen", self._listener_nonce, self._nonce, self._me, self._peer)):
            self._finish(self._peer, self._derive_keys(self._listener_nonce, self._nonce, self._me, self._peer))
        else:
            self.fail("no proof")
