"""The port that is open while nodes exchange pieces: an outsider gets nothing, and a peer's wrong bytes are refused."""

import asyncio
import hmac
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

import pytest
from agent.transfer.test_file_transfer import SOON, contents
from node_homes import HomeTransport

from aboard.agent.transfer.partial_file import part_name, piece_part_name
from aboard.agent.transfer.peer_acceptor import MOST_STRANGERS
from aboard.core.cluster.node import Node
from aboard.diagnoses import AboardError, AgentRequestError
from aboard.transport.files.file_sender import FileSender
from aboard.transport.files.peer_control import PeerControl, PeerStatus, PieceTable
from aboard.transport.node_dialer import NodeDialer

KEY = bytes(range(32))
PIECE = 100_000
CONTENT = os.urandom(3 * PIECE - 10)
PIECES = [CONTENT[at : at + PIECE] for at in range(0, len(CONTENT), PIECE)]
DIGEST = sha256(CONTENT).hexdigest()
TABLE = PieceTable(
    first=0,
    folder="~/model",
    name="a",
    size=len(CONTENT),
    sha256=DIGEST,
    piece=PIECE,
    hashes=b"".join(sha256(piece).digest() for piece in PIECES),
)
ME, PEER = 1, 7


@asynccontextmanager
async def exchanging(home: Path, *, complete: bool = False) -> AsyncIterator[tuple[PeerControl, int]]:
    """A real agent that takes part as number 1, and its port."""
    dialer = NodeDialer(lambda _node: HomeTransport(home))
    sender = FileSender((await dialer.dial(Node(name="n1"))).link)
    try:
        control = PeerControl(sender, "~/model")
        at = await control.open(me=ME, key=KEY, address="127.0.0.1", ports=[0])
        await control.add(TABLE, complete=complete)
        yield control, at.ports[0]
        control.leave()
    finally:
        await sender.close()


def run(home: Path, attack: Callable[[PeerControl, int], Awaitable[None]], *, complete: bool = False) -> None:
    async def main() -> None:
        async with exchanging(home, complete=complete) as (control, port):
            await attack(control, port)

    try:
        asyncio.run(main())
    finally:
        while Peer.links:
            Peer.links.pop().close()


class Peer:
    """A peer by hand: it has the key, or not, and says what it likes."""

    links: ClassVar[list[socket.socket]] = []

    def __init__(self, port: int) -> None:
        self.link = socket.create_connection(("127.0.0.1", port), timeout=SOON)
        self.links.append(self.link)
        self.nonce = self.read(32)

    def prove(self, key: bytes, *, number: int = PEER, to: int = ME, role: bytes = b"dial") -> bytes:
        """Answers the challenge; returns what comes back, which is nothing for a stranger."""
        own = os.urandom(32)
        ends = number.to_bytes(4, "big") + to.to_bytes(4, "big")
        proof = hmac.digest(key, b"aboard peer " + role + self.nonce + own + ends, "sha256")
        self.link.sendall(own + number.to_bytes(4, "big") + proof)
        expected = hmac.digest(key, b"aboard peer listen" + self.nonce + own + ends, "sha256")
        answer = self.read(32)
        assert answer in (b"", expected)
        return answer

    def say(self, kind: bytes, piece: int, data: bytes = b"") -> None:
        self.link.sendall(kind + piece.to_bytes(4, "big") + data)

    def hear(self) -> tuple[bytes, int]:
        message = self.read(5)
        return message[:1], int.from_bytes(message[1:], "big")

    def read(self, count: int) -> bytes:
        """Reads so many bytes; fewer if the other end closes."""
        data = b""
        while len(data) < count:
            try:
                more = self.link.recv(count - len(data))
            except ConnectionResetError:
                break
            if not more:
                break
            data += more
        return data


async def talk(work: Callable[[], None]) -> None:
    await asyncio.wait_for(asyncio.to_thread(work), 4 * SOON)


async def status(control: PeerControl, until: Callable[[PeerStatus], bool]) -> PeerStatus:
    async with asyncio.timeout(SOON):
        while True:
            found = await control.status(0, len(PIECES), 0.02)
            if until(found):
                return found


def test_a_stranger_gets_nothing(tmp_path: Path) -> None:
    """Neither a wrong key, nor another run's role or number, nor garbage, nor silence: each is closed, unanswered."""
    (tmp_path / "n1/model").mkdir(parents=True)
    (tmp_path / "n1/model/a").write_bytes(CONTENT)

    async def attack(control: PeerControl, port: int) -> None:
        def intrude() -> None:
            assert Peer(port).prove(bytes(32)) == b""
            assert Peer(port).prove(KEY, to=2) == b""
            assert Peer(port).prove(KEY, role=b"listen") == b""
            garbage = Peer(port)
            garbage.link.sendall(b"GET / HTTP/1.1\r\n" * 100)
            assert garbage.read(1) == b""
            assert Peer(port).read(1) == b""

        await talk(intrude)
        assert (await status(control, lambda found: found.refused >= 5)).links == frozenset()

    run(tmp_path, attack, complete=True)


def test_strangers_do_not_keep_peers_out(tmp_path: Path) -> None:
    """However many connect and say nothing, one that has the key gets its piece meanwhile."""
    (tmp_path / "n1/model").mkdir(parents=True)
    (tmp_path / "n1/model/a").write_bytes(CONTENT)

    async def attack(control: PeerControl, port: int) -> None:
        def intrude() -> None:
            with ExitStack() as silent:
                for _ in range(3 * MOST_STRANGERS):
                    silent.enter_context(socket.create_connection(("127.0.0.1", port), timeout=SOON))
                peer = Peer(port)
                assert peer.prove(KEY)
                assert [peer.hear() for _ in PIECES] == [(b"H", 0), (b"H", 1), (b"H", 2)]
                peer.say(b"R", 2)
                assert peer.hear() == (b"D", 2)
                assert peer.read(len(PIECES[2])) == PIECES[2]

        await talk(intrude)

    run(tmp_path, attack, complete=True)


def test_a_proof_cannot_be_used_twice(tmp_path: Path) -> None:
    """What was overheard on one connection opens no other: the challenge is new each time."""

    async def attack(control: PeerControl, port: int) -> None:
        def intrude() -> None:
            first = Peer(port)
            own, ends = os.urandom(32), PEER.to_bytes(4, "big") + ME.to_bytes(4, "big")
            proof = hmac.digest(KEY, b"aboard peer dial" + first.nonce + own + ends, "sha256")
            first.link.sendall(own + PEER.to_bytes(4, "big") + proof)
            assert len(first.read(32)) == 32
            second = Peer(port)
            second.link.sendall(own + PEER.to_bytes(4, "big") + proof)
            assert second.read(1) == b""

        await talk(intrude)

    run(tmp_path, attack)


def test_wrong_bytes_are_found_and_fetched_elsewhere(tmp_path: Path) -> None:
    """A peer with the key that serves other bytes is reported and never asked again; another one has the right ones."""

    async def attack(control: PeerControl, port: int) -> None:
        def lie() -> None:
            peer = Peer(port)
            assert peer.prove(KEY)
            peer.say(b"H", 1)
            assert peer.hear() == (b"R", 1)
            peer.say(b"D", 1, PIECES[1][:-1] + b"?")
            assert peer.read(1) == b""
            again = Peer(port)
            assert again.prove(KEY)
            assert again.read(1) == b""

        await talk(lie)
        found = await status(control, lambda found: PEER in found.wrong)
        assert (found.have, found.fetched) == (0, 0)

        def serve() -> None:
            peer = Peer(port)
            assert peer.prove(KEY, number=8)
            for piece in range(3):
                peer.say(b"H", piece)
            for _ in PIECES:
                kind, piece = peer.hear()
                while kind == b"H":
                    kind, piece = peer.hear()
                assert kind == b"R"
                peer.say(b"D", piece, PIECES[piece])

        await talk(serve)
        assert (await status(control, lambda found: found.have == 0b111)).wrong == {PEER}

    run(tmp_path, attack)
    assert contents(tmp_path / "n1/model") == {part_name(DIGEST): CONTENT}


def test_a_peer_that_dies_in_a_piece_is_replaced(tmp_path: Path) -> None:
    """Half a piece is no piece; it comes from the head, and nothing of the half was written."""

    async def attack(control: PeerControl, port: int) -> None:
        def die() -> None:
            peer = Peer(port)
            assert peer.prove(KEY)
            peer.say(b"H", 0)
            assert peer.hear() == (b"R", 0)
            peer.say(b"D", 0, PIECES[0][: PIECE // 2])
            peer.link.close()

        await talk(die)
        assert (await status(control, lambda found: not found.links)).have == 0
        assert (tmp_path / "n1/model" / piece_part_name(DIGEST)).read_bytes() == bytes(len(CONTENT))
        for number, piece in enumerate(PIECES):
            await control.send(number, memoryview(piece), lambda _count: None)
        assert (await status(control, lambda found: found.have == 0b111)).wrong == frozenset()

    run(tmp_path, attack)
    assert contents(tmp_path / "n1/model") == {part_name(DIGEST): CONTENT}


@pytest.mark.parametrize("message", [b"R\0\0\0\1", b"D\0\0\0\0", b"H\xff\xff\xff\xff", b"X\0\0\0\0"])
def test_messages_that_make_no_sense_end_the_connection(tmp_path: Path, message: bytes) -> None:
    """A request for a piece that is not there, data that nobody asked for, an impossible number, another letter."""

    async def attack(control: PeerControl, port: int) -> None:
        def confuse() -> None:
            peer = Peer(port)
            assert peer.prove(KEY)
            peer.link.sendall(message)
            assert peer.read(1) == b""

        await talk(confuse)
        assert (await control.status(0, 3, 0.0)).ready

    run(tmp_path, attack)


def test_a_piece_of_the_head_is_verified_too(tmp_path: Path) -> None:
    """If the file there changed since it was hashed, the node refuses the piece."""

    async def attack(control: PeerControl, port: int) -> None:
        with pytest.raises(AgentRequestError, match="piece 0 differs from its hash"):
            await control.send(0, memoryview(bytes(PIECE)), lambda _count: None)
        assert (await control.status(0, 3, 0.0)).have == 0

    run(tmp_path, attack)


def test_pieces_do_not_follow_a_link_out_of_a_tree(tmp_path: Path) -> None:
    """A directory of the tree that is a link on the node: refused, and nothing is written behind it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "n1/tree").mkdir(parents=True)
    (tmp_path / "n1/tree/data").symlink_to(outside)

    async def attack(control: PeerControl, port: int) -> None:
        with pytest.raises(AboardError) as error:
            await control.add(replace(TABLE, folder="~/tree//data", first=10), complete=False)
        assert error.value.code == "spread-link"
        for name in ("../a", "a/b", ".aboard-x"):
            with pytest.raises(AgentRequestError, match="BadName"):
                await control.add(replace(TABLE, name=name, first=10), complete=False)

    run(tmp_path, attack)
    assert contents(outside) == {}
