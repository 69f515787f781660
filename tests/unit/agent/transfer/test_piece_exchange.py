"""The exchange of pieces inside one node: peers that are slow or silent, and connections that cross."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from aboard.agent.event_loop import EventLoop
from aboard.agent.transfer.piece_exchange import SILENT_SECONDS, SLOW_SECONDS, PieceExchange
from aboard.agent.transfer.piece_file import PieceFile

PIECES = (b"a" * 100, b"b" * 100, b"c" * 50)
CONTENT = b"".join(PIECES)


class Node:
    """An exchange that lacks one file of three pieces."""

    def __init__(self, folder: Path) -> None:
        self.loop = EventLoop()
        self.completed = False
        self.exchange = PieceExchange(self.loop, self.complete, lambda _peer: None)
        self.links: list[socket.socket] = []
        hashes = b"".join(sha256(piece).digest() for piece in PIECES)
        self.folder = os.open(folder, os.O_RDONLY)
        file = PieceFile(self.folder, "a", len(CONTENT), sha256(CONTENT).hexdigest(), 100, hashes)
        self.exchange.add(0, file, complete=False)
        self.run(lambda: self.exchange.ready)

    def complete(self) -> None:
        self.completed = True

    def connect(self, peer: int, *has: int) -> socket.socket:
        """The other end of a new connection, whose peer announces these pieces."""
        there = self.cross(peer, peer)
        there.sendall(b"".join(b"H" + piece.to_bytes(4, "big") for piece in has))
        return there

    def cross(self, peer: int, dialer: int) -> socket.socket:
        """The other end of a new connection that `dialer` made."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            there = socket.create_connection(listener.getsockname(), timeout=5)
            here = listener.accept()[0]
        here.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self.links.append(there)
        self.exchange.join(here, peer, dialer)
        return there

    def run(self, condition: Callable[[], object]) -> None:
        """Runs the loop until the condition holds."""

        def check() -> None:
            if condition():
                self.loop.stop()
            else:
                self.loop.later(0.001, check)

        self.loop._running = True
        check()
        self.loop.run()

    def age(self, seconds: float) -> None:
        """Makes all that was requested this much older, and lets the exchange notice."""
        for peer in self.exchange.peers.values():
            peer.heard -= seconds
            peer.asked = {piece: since - seconds for piece, since in peer.asked.items()}
        self.exchange._tick()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    for peer in list(made.exchange.peers.values()):
        peer.close()
    for link in made.links:
        link.close()
    os.close(made.folder)
    signal.set_wakeup_fd(-1)


def hear(link: socket.socket) -> tuple[bytes, int]:
    message = link.recv(5, socket.MSG_WAITALL)
    return message[:1], int.from_bytes(message[1:], "big")


def test_a_silent_peer_is_given_up(node: Node) -> None:
    """Its piece is requested from another one, and it is not asked again, also over a new connection."""
    silent, other = node.connect(1, 0), node.connect(2)
    node.run(lambda: node.exchange.peers[1].asked)
    assert hear(silent) == (b"R", 0)
    node.age(SILENT_SECONDS + 1)
    assert (node.exchange.silent, list(node.exchange.peers)) == ({1}, [2])
    other.sendall(b"H\0\0\0\0")
    node.run(lambda: node.exchange.peers[2].asked)
    assert hear(other) == (b"R", 0)
    again = node.connect(1, 1)
    assert again.recv(1) == b""


def test_a_slow_peer_does_not_hold_up_the_end(node: Node) -> None:
    """A piece that takes long is requested from a second peer too; the first answer counts, the other is ignored."""
    slow, quick = node.connect(1, 0), node.connect(2)
    node.run(lambda: node.exchange.peers[1].asked)
    quick.sendall(b"H\0\0\0\0")
    node.run(lambda: node.exchange.peers[2].has)
    assert not node.exchange.peers[2].asked
    node.age(SLOW_SECONDS + 1)
    assert hear(quick) == (b"R", 0)
    quick.sendall(b"D\0\0\0\0" + PIECES[0])
    node.run(lambda: node.exchange.has(0))
    slow.sendall(b"D\0\0\0\0" + PIECES[0] + b"H\0\0\0\2")
    node.run(lambda: 2 in node.exchange.peers[1].asked)
    assert node.exchange.fetched == 100


def test_few_requests_are_open(node: Node) -> None:
    """At one peer only two at a time; the third follows the first piece, and the end is reported."""
    peer = node.connect(1, 0, 1, 2)
    node.run(lambda: len(node.exchange.peers[1].asked) == 2)
    while not node.completed:
        kind, piece = hear(peer)
        if kind == b"R":
            peer.sendall(b"D" + piece.to_bytes(4, "big") + PIECES[piece])
            node.run(partial(node.exchange.has, piece))
    assert node.exchange.fetched == len(CONTENT)


def test_crossed_connections_become_one(node: Node) -> None:
    """Both ends keep that of the lower number, whichever came first."""
    first = node.connect(5)
    node.cross(5, 2)
    assert first.recv(1) == b""
    late = node.connect(5)
    assert late.recv(1) == b""
    assert node.exchange.peers[5].dialer == 2
