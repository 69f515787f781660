"""Listens on ports for probes from peers with a token; echoes or counts what they send."""

from __future__ import annotations

import contextlib
import errno
import socket
from _operator import _compare_digest as compare_digest  # hmac would cost 5 ms
from collections.abc import Callable

from aboard.agent import frames
from aboard.agent.event_loop import EventLoop

# The token of a connection comes first. The next byte selects what the listener does with the rest: send it back, or
# count it.
TOKEN_BYTES = 32
ECHO = b"E"
SINK = b"S"
COUNT_BYTES = 8

CHUNK = 256 * 1024
BACKLOG = 512
# Far below the usual limit of 1024 descriptors; later peers wait in the backlog.
MOST_PEERS = 400
# Connections that have not sent their token yet: any user of the network can open them.
MOST_STRANGERS = 256
TOKEN_SECONDS = 1.0
PAUSE_SECONDS = 0.05


class PeerListener:
    """The listeners and their peer connections, in the bridge's loop; they end with the bridge."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._listeners: list[socket.socket] = []
        self._peers: set[_PeerConnection] = set()
        # In the order of their arrival.
        self._strangers: dict[_PeerConnection, str] = {}

    def listen(self, ports: list[int], token: bytes) -> frames.Message:
        """Listens on these ports (0 for any); returns each port or why not, and this host's addresses."""
        # Only a node that listens needs them.
        from aboard.agent.network import interface_addresses, port_owners  # noqa: PLC0415

        results: list[frames.Message] = []
        for port in ports:
            try:
                listener = _open_listener(port)
            except OSError as error:
                name = errno.errorcode.get(error.errno or 0, str(error))
                in_use = error.errno == errno.EADDRINUSE
                results.append({"errno": name, "owner": port_owners.find_port_owner(port) if in_use else None})
            else:
                self._listeners.append(listener)
                self._loop.on_readable(listener.fileno(), lambda of=listener: self._accept(of, token))  # type: ignore[misc]
                results.append({"port": listener.getsockname()[1]})
        return {"ports": results, "addresses": interface_addresses.list_addresses()}

    def close(self) -> None:
        """Releases the ports, before a rank needs one of them."""
        for listener in self._listeners:
            self._loop.remove_fd(listener.fileno())
            listener.close()
        self._listeners.clear()
        for peer in [*self._peers, *self._strangers]:
            peer.close()

    def _accept(self, listener: socket.socket, token: bytes) -> None:
        address = ("",)
        try:
            connection, address = (None, address) if len(self._peers) >= MOST_PEERS else listener.accept()
        except BlockingIOError:
            return
        except OSError:
            connection = None
        if connection is not None:
            peer = _PeerConnection(self._loop, connection, token, self._admit, self._drop)
            self._strangers[peer] = str(address[0])
            self._loop.later(TOKEN_SECONDS, lambda: self._expire(peer))
            if len(self._strangers) > MOST_STRANGERS:
                self._drop_stranger()
            return
        # No descriptors left, most likely: peers wait in the backlog, and we must not spin meanwhile.
        self._loop.on_readable(listener.fileno(), None)
        self._loop.later(PAUSE_SECONDS, lambda: self._resume(listener, token))

    def _resume(self, listener: socket.socket, token: bytes) -> None:
        if listener in self._listeners:
            self._loop.on_readable(listener.fileno(), lambda: self._accept(listener, token))

    def _admit(self, peer: _PeerConnection) -> None:
        del self._strangers[peer]
        self._peers.add(peer)

    def _drop(self, peer: _PeerConnection) -> None:
        self._strangers.pop(peer, None)
        self._peers.discard(peer)

    def _expire(self, peer: _PeerConnection) -> None:
        if peer in self._strangers:
            peer.close()

    def _drop_stranger(self) -> None:
        """Closes the oldest stranger from the address that has the most: a flood from one host affects no other."""
        counts: dict[str, int] = {}
        for address in self._strangers.values():
            counts[address] = counts.get(address, 0) + 1
        most = max(counts, key=lambda address: counts[address])
        next(peer for peer, address in self._strangers.items() if address == most).close()


class _PeerConnection:
    """One peer's connection: echoes its data, or counts it and sends the count at the end; closes without a token."""

    def __init__(
        self,
        loop: EventLoop,
        connection: socket.socket,
        token: bytes,
        on_token: Callable[[_PeerConnection], None],
        on_gone: Callable[[_PeerConnection], None],
    ) -> None:
        connection.setblocking(False)
        self._loop = loop
        self._connection = connection
        self._token = token
        self._sent_token = b""
        self._on_token = on_token
        self._on_gone = on_gone
        self._mode = b""
        self._unsent = bytearray()
        self._count = 0
        self._ended = False
        loop.on_readable(connection.fileno(), self._readable)

    def _readable(self) -> None:
        try:
            data = self._receive()
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if data and not self._mode:
            self._mode, data = data[:1], data[1:]
        elif not data:
            self._ended = True
            self._loop.on_readable(self._connection.fileno(), None)
            if self._mode == SINK:
                self._unsent += self._count.to_bytes(COUNT_BYTES, "big")
        if self._mode == SINK:
            self._count += len(data)
        else:
            self._unsent += data
        self._flush()

    def _receive(self) -> bytes:
        """The next data behind the token; raises OSError for a stranger."""
        if self._sent_token != self._token:
            start = self._connection.recv(TOKEN_BYTES - len(self._sent_token))
            self._sent_token += start
            if len(self._sent_token) < TOKEN_BYTES and start:
                raise BlockingIOError
            if not compare_digest(self._sent_token, self._token):
                raise ConnectionRefusedError(errno.ECONNREFUSED, "wrong token")
            self._on_token(self)
        return self._connection.recv(CHUNK)

    def _flush(self) -> None:
        fd = self._connection.fileno()
        try:
            while self._unsent:
                sent = self._connection.send(self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            self._loop.on_writable(fd, self._flush)
            # A peer that sends and never reads waits in its own socket, not in our memory.
            self._loop.on_readable(fd, None if self._ended or len(self._unsent) > CHUNK else self._readable)
        except OSError:
            self.close()
        else:
            self._loop.on_writable(fd, None)
            if self._ended:
                self.close()
            else:
                self._loop.on_readable(fd, self._readable)

    def close(self) -> None:
        self._loop.remove_fd(self._connection.fileno())
        self._connection.close()
        self._on_gone(self)


def _open_listener(port: int) -> socket.socket:
    """Listens on all addresses of both families, as torch's store does, or of IPv4 only where IPv6 is missing."""
    with contextlib.suppress(OSError):
        if socket.has_dualstack_ipv6():
            return bind_listener(socket.AF_INET6, ("::", port))
    return bind_listener(socket.AF_INET, ("0.0.0.0", port))  # noqa: S104 - peers come from any network


def bind_listener(family: int, address: tuple[str, int]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
