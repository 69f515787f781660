"""Nodes pass pieces of large files on to each other: announces what is here, and requests what is missing."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable

from aboard.agent.event_loop import EventLoop
from aboard.agent.transfer.peer_connection import MOST_PIECES, PeerConnection
from aboard.agent.transfer.piece_file import PieceFile

# Requests open at one peer, and at all of them: the bytes of each wait in memory until its hash is known.
AT_ONE_PEER = 2
AT_ALL_PEERS = 8
# A peer that was asked and sends nothing for this long is given up.
SILENT_SECONDS = 10.0
# A piece that takes longer than this is requested from a second peer too.
SLOW_SECONDS = 3.0
TICK_SECONDS = 1.0
# The rarest of so many random pieces is requested next, so that nodes do not all hold the same ones.
SAMPLE = 16


class PieceExchange:
    """The pieces of this node and its connections to peers; a peer that sends wrong bytes is not asked again."""

    def __init__(self, loop: EventLoop, on_complete: Callable[[], None], on_drop: Callable[[int], None]) -> None:
        self._on_complete = on_complete
        self._on_drop = on_drop
        self.received = self.fetched = 0
        self.wrong: set[int] = set()
        self.silent: set[int] = set()
        self.failure: OSError | None = None
        self.peers: dict[int, PeerConnection] = {}
        self._loop = loop
        self._pieces: dict[int, tuple[PieceFile, int]] = {}
        self._first: dict[PieceFile, int] = {}
        self._left: dict[PieceFile, int] = {}
        self._present: set[int] = set()
        self._wanted: set[int] = set()
        self._holders: dict[int, int] = {}
        self._unchecked: list[tuple[PieceFile, int]] = []
        loop.later(TICK_SECONDS, self._tick)

    @property
    def refused_peers(self) -> set[int]:
        """Peers that sent wrong bytes, or nothing."""
        return self.wrong | self.silent

    @property
    def ready(self) -> bool:
        """Whether all that earlier transfers left has been hashed."""
        return not self._unchecked

    def add(self, first: int, file: PieceFile, *, complete: bool) -> None:
        """Offers a complete file, or requests the pieces of one that this node lacks; `first` numbers its pieces."""
        pieces = range(first, first + file.pieces)
        if first < 0 or pieces.stop > MOST_PIECES:
            raise ValueError("a piece above %d" % MOST_PIECES)
        if complete:
            file.open_complete()
        else:
            file.open_partial()
        self._pieces.update((piece, (file, piece - first)) for piece in pieces)
        self._first[file] = first
        self._left[file] = 0 if complete else file.pieces
        if complete:
            self._present.update(pieces)
            for peer in list(self.peers.values()):
                peer.announce(list(pieces))
        else:
            if not self._unchecked:
                self._loop.later(0, self._check_next)
            self._unchecked.append((file, 0))

    def describe(self, first: int, count: int) -> str:
        """Which of these pieces are here, as hexadecimal bits; the first is the lowest bit."""
        bits = bytearray(-(-min(count, MOST_PIECES) // 8))
        for number in range(min(count, MOST_PIECES)):
            if first + number in self._present:
                bits[number >> 3] |= 1 << (number & 7)
        return bits.hex()

    def complete(self) -> bool:
        return not any(self._left.values())

    def join(self, link: socket.socket, peer: int, dialer: int) -> None:
        """Takes in an authenticated connection; of two that crossed, both ends keep that of the lower number."""
        old = self.peers.get(peer)
        if peer in self.refused_peers or (old is not None and old.dialer < dialer):
            link.close()
            return
        if old is not None:
            old.close()
        self.peers[peer] = connection = PeerConnection(self._loop, link, peer, dialer, self)
        connection.announce(sorted(self._present))

    def take_from_head(self, piece: int, data: memoryview) -> None:
        """Stores a piece that came over ssh; raises ValueError if the file on the head has changed."""
        file, number = self._pieces[piece]
        if not file.fits(number, data):
            raise ValueError("piece %d differs from its hash" % piece)
        self._store(piece, data)

    # For connections.

    def has(self, piece: int) -> bool:
        return piece in self._present

    def locate(self, piece: int) -> tuple[int, int, int]:
        """The file, offset and length of a piece."""
        file, number = self._pieces[piece]
        return (file.fileno(), *file.span(number))

    def note_announcement(self, peer: PeerConnection, piece: int) -> None:
        self._holders[piece] = self._holders.get(piece, 0) + 1
        if piece in self._wanted:
            peer.useful.add(piece)
            self._request_from(peer)

    def take(self, peer: PeerConnection, piece: int, data: memoryview) -> None:
        """Stores a piece from a peer, or closes the connection to a peer that sent other bytes."""
        file, number = self._pieces[piece]
        if not file.fits(number, data):
            self.wrong.add(peer.peer)
            peer.close()
            return
        del peer.asked[piece]
        if piece not in self._present:
            self.fetched += len(data)
            self._store(piece, data)
        self._request_more()

    def drop(self, peer: PeerConnection) -> None:
        """Forgets a closed connection; what was requested from it is wanted again."""
        if self.peers.get(peer.peer) is peer:
            del self.peers[peer.peer]
            self._on_drop(peer.peer)
        for piece in peer.has:
            self._holders[piece] -= 1
        for piece in peer.asked:
            if piece not in self._present and not any(piece in other.asked for other in self.peers.values()):
                self._want(piece)
        self._request_more()

    def _check_next(self) -> None:
        """Hashes one piece that may be here already, then lets others work."""
        file, number = self._unchecked[0]
        piece = self._first[file] + number
        if piece not in self._present:
            try:
                present = file.holds(number)
            except OSError:
                present = False
            if present:
                self._add_present(piece)
            else:
                self._want(piece)
        if number + 1 < file.pieces:
            self._unchecked[0] = (file, number + 1)
        else:
            del self._unchecked[0]
        if self._unchecked:
            self._loop.later(0, self._check_next)
        self._request_more()

    def _want(self, piece: int) -> None:
        self._wanted.add(piece)
        for peer in self.peers.values():
            if piece in peer.has:
                peer.useful.add(piece)

    def _store(self, piece: int, data: memoryview) -> None:
        if piece in self._present or self.failure is not None:
            return
        file, number = self._pieces[piece]
        try:
            file.write(number, data)
            self._unwant(piece)
            self._add_present(piece)
        except OSError as error:
            # No more pieces are requested; the head learns why with the next status.
            self.failure = error

    def _add_present(self, piece: int) -> None:
        file = self._pieces[piece][0]
        self._present.add(piece)
        self._left[file] -= 1
        if not self._left[file]:
            file.hand_over()
        for peer in list(self.peers.values()):
            if piece not in peer.has:
                peer.announce([piece])
        if self.complete():
            self._on_complete()

    def _unwant(self, piece: int) -> None:
        self._wanted.discard(piece)
        for peer in self.peers.values():
            peer.useful.discard(piece)

    def _request_more(self) -> None:
        peers = list(self.peers.values())
        random.shuffle(peers)
        for peer in peers:
            if peer.useful:
                self._request_from(peer)

    def _request_from(self, peer: PeerConnection) -> None:
        while peer.open and peer.useful and len(peer.asked) < AT_ONE_PEER and self.failure is None:
            if sum(len(each.asked) for each in self.peers.values()) >= AT_ALL_PEERS:
                return
            some = random.sample(tuple(peer.useful), min(SAMPLE, len(peer.useful)))
            piece = min(some, key=lambda each: self._holders.get(each, 0))
            self._unwant(piece)
            peer.request(piece)

    def _tick(self) -> None:
        self._loop.later(TICK_SECONDS, self._tick)
        now = time.monotonic()
        for peer in list(self.peers.values()):
            if peer.asked and now - peer.heard > SILENT_SECONDS:
                self.silent.add(peer.peer)
                peer.close()
        slow = {
            piece for peer in self.peers.values() for piece, since in peer.asked.items() if now - since > SLOW_SECONDS
        }
        for peer in list(self.peers.values()):
            again = [piece for piece in slow if piece in peer.has and piece not in peer.asked]
            if again and not peer.asked and not peer.useful and self.failure is None:
                slow.discard(again[0])
                peer.request(again[0])
        self._request_more()
