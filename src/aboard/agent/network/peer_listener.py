"""Listens on ports for probes from peers; echoes or counts what they send."""

from __future__ import annotations

import contextlib
import errno
import socket

from aboard.agent import frames
from aboard.agent.event_loop import EventLoop

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable

# The first byte of a connection selects what the listener does with the rest: send it back, or count it.
ECHO = b"E"
SINK = b"S"
COUNT_BYTES = 8

CHUNK = 256 * 1024
BACKLOG = 512
# Far below the usual limit of 1024 descriptors; later peers wait in the backlog.
MOST_PEERS = 400
PAUSE_SECONDS = 0.05


class PeerListener:
    """The listeners and their peer connections, in the bridge's loop; they end with the bridge."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._listeners: list[socket.socket] = []
        self._peers: set[_PeerConnection] = set()

    def listen(self, ports: list[int]) -> frames.Message:
        """Listens on these ports (0 for any); returns each port or why not, and this host's addresses."""
        from aboard.agent.network import interface_addresses  # noqa: PLC0415 - only a node that listens needs it

        results: list[frames.Message] = []
        for port in ports:
            try:
                listener = _open_listener(port)
            except OSError as error:
                name = errno.errorcode.get(error.errno or 0, str(error))
                in_use = error.errno == errno.EADDRINUSE
                results.append({"errno": name, "owner": interface_addresses.find_port_owner(port) if in_use else None})
            else:
                self._listeners.append(listener)
                self._loop.on_readable(listener.fileno(), lambda of=listener: self._accept(of))  # type: ignore[misc]
                results.append({"port": listener.getsockname()[1]})
        return {"ports": results, "addresses": interface_addresses.list_addresses()}

    def close(self) -> None:
        """Releases the ports, before a rank needs one of them."""
        for listener in self._listeners:
            self._loop.forget(listener.fileno())
            listener.close()
        self._listeners.clear()
        for peer in list(self._peers):
            peer.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection = None if len(self._peers) >= MOST_PEERS else listener.accept()[0]
        except BlockingIOError:
            return
        except OSError:
            connection = None
        if connection is not None:
            self._peers.add(_PeerConnection(self._loop, connection, self._peers.discard))
            return
        # No descriptors left, most likely: peers wait in the backlog, and we must not spin meanwhile.
        self._loop.on_readable(listener.fileno(), None)
        self._loop.later(PAUSE_SECONDS, lambda: self._resume(listener))

    def _resume(self, listener: socket.socket) -> None:
        self._loop.on_readable(listener.fileno(), lambda: self._accept(listener))


class _PeerConnection:
    """One peer's connection: echoes its data, or counts it and sends the count at the end."""

    def __init__(self, loop: EventLoop, connection: socket.socket, on_gone: Callable[[_PeerConnection], None]) -> None:
        connection.setblocking(False)
        self._loop = loop
        self._connection = connection
        self._on_gone = on_gone
        self._mode = b""
        self._unsent = bytearray()
        self._count = 0
        self._ended = False
        loop.on_readable(connection.fileno(), self._readable)

    def _readable(self) -> None:
        try:
            data = self._connection.recv(CHUNK)
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
        self._loop.forget(self._connection.fileno())
        self._connection.close()
        self._on_gone(self)


def _open_listener(port: int) -> socket.socket:
    """Listens on all addresses of both families, as torch's store does, or of IPv4 only where IPv6 is missing."""
    with contextlib.suppress(OSError):
        if socket.has_dualstack_ipv6():
            return _bind_listener(socket.AF_INET6, ("::", port))
    return _bind_listener(socket.AF_INET, ("0.0.0.0", port))  # noqa: S104 - peers come from any network


def _bind_listener(family: int, address: tuple[str, int]) -> socket.socket:
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
