"""Accepts connections of peers: only who proves to have the key gets further, and strangers have a limit."""

from __future__ import annotations

import socket
from collections.abc import Callable

from aboard.agent.event_loop import EventLoop
from aboard.agent.transfer.peer_handshake import ListenerHandshake, PeerKeys

KEY_BYTES = 32
# Strangers that have not proved to have the key; when one more comes, the oldest is dropped.
MOST_STRANGERS = 32
MOST_PEERS = 256
PAUSE_SECONDS = 0.05


class PeerAcceptor:
    """The listeners of one process; `on_peer` gets each authenticated connection, the peer's number and the keys."""

    def __init__(
        self, loop: EventLoop, on_peer: Callable[[socket.socket, int, PeerKeys], None], count_peers: Callable[[], int]
    ) -> None:
        self.refused = 0
        self.ports: list[int] = []
        self._loop = loop
        self._on_peer = on_peer
        self._count_peers = count_peers
        self._key = b""
        self._me = -1
        self._strangers: list[ListenerHandshake] = []

    def set_key(self, key: bytes, me: int) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError("a key has %d bytes" % KEY_BYTES)
        self._key, self._me = key, me

    def listen(self, listener: socket.socket) -> None:
        self.ports.append(listener.getsockname()[1])
        self._loop.on_readable(listener.fileno(), lambda: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        try:
            link = listener.accept()[0]
        except BlockingIOError:
            return
        except OSError:
            # No descriptors left, most likely: peers wait in the backlog, and we must not spin meanwhile.
            self._loop.on_readable(listener.fileno(), None)
            self._loop.later(
                PAUSE_SECONDS, lambda: self._loop.on_readable(listener.fileno(), lambda: self._accept(listener))
            )
            return
        link.setblocking(False)
        if self._count_peers() >= MOST_PEERS:
            link.close()
            return
        if len(self._strangers) >= MOST_STRANGERS:
            # A peer needs one round trip: the oldest has had far more.
            self._strangers[0].fail("too many")

        def refuse(_why: str) -> None:
            self.refused += 1
            self._strangers.remove(stranger)

        def take_in(link: socket.socket, peer: int, keys: PeerKeys) -> None:
            self._strangers.remove(stranger)
            self._on_peer(link, peer, keys)

        stranger = ListenerHandshake(self._loop, link, self._key, self._me, take_in, refuse)
        self._strangers.append(stranger)
        stranger.start()


def resolve_address(address: str) -> tuple[int, str]:
    """The family and the numeric form of the address that peers use for this node."""
    family, _type, _protocol, _name, found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0]
    return int(family), str(found[0])
