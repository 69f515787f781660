"""A child of the bridge that exchanges pieces with peers; it listens on a port, and exits with the bridge."""

from __future__ import annotations

import errno
import socket

from aboard.agent import frames
from aboard.agent.channel import Channel
from aboard.agent.event_loop import EventLoop
from aboard.agent.network.peer_listener import bind_listener
from aboard.agent.transfer.file_names import describe_failure, validate_file_name
from aboard.agent.transfer.peer_acceptor import PeerAcceptor, resolve_address
from aboard.agent.transfer.peer_handshake import DialerHandshake, PeerKeys
from aboard.agent.transfer.piece_exchange import PieceExchange
from aboard.agent.transfer.piece_file import PieceFile
from aboard.agent.transfer.receive_folders import make_receive_folder, validate_folder
from aboard.agent.transfer.root_folder import open_folder

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from typing import Any

CONNECT_SECONDS = 1.5
# Of two nodes, the one with the lower number dials; the other waits this long for it, then dials itself.
TURN_SECONDS = 1.0
REDIALS = 3


def serve_peers(fd: int) -> None:
    """Answers the head's requests on `fd`, and peers, until the head leaves."""
    loop = EventLoop()
    PeerProcess(loop, fd)
    loop.run()


class PeerProcess:
    """The head's requests: listen, connect to peers, add files, take a piece, report."""

    def __init__(self, loop: EventLoop, fd: int) -> None:
        self._loop = loop
        self._exchange = PieceExchange(loop, self._report_completion, self._redial)
        self._channel = Channel(loop, (fd, fd), self._take, loop.stop)
        self._key = b""
        self._me = -1
        self._acceptor = PeerAcceptor(loop, self._take_in, lambda: len(self._exchange.peers))
        self._addresses: dict[int, list[tuple[str, int]]] = {}
        self._drops: dict[int, int] = {}
        self._unreached: dict[int, str] = {}
        self._folders: dict[str, int] = {}
        self._arriving: dict[int, bytearray] = {}
        self._waiting: frames.Message | None = None

    def _take(self, body: bytes) -> None:
        message, tail = frames.unpack_parts(body)
        try:
            answer = self._answer(message, tail)
        except BlockingIOError:
            answer = {"busy": True}
        except OSError as error:
            answer = describe_failure(error)
        except Exception as error:  # noqa: BLE001 - whatever a frame contains, it gets a reply
            answer = {"error": "%s: %s" % (type(error).__name__, error)}
        if answer is not None:
            self._reply(message, answer)

    def _reply(self, message: frames.Message, answer: frames.Message) -> None:
        answer["re"] = message.get("id")
        self._channel.send(answer)

    def _answer(self, message: frames.Message, tail: memoryview) -> frames.Message | None:
        if message["op"] == "peer-piece":
            return self._take_piece(int(message["piece"]), int(message["at"]), tail)
        do = message["do"]
        if do == "open":
            return self._open(message)
        if do == "dial":
            for peer, host, ports in message["peers"]:
                self._addresses[int(peer)] = [(str(host), int(port)) for port in ports]
                self._dial_in_turn(int(peer))
            return {}
        if do == "add":
            return self._add(message["file"])
        if do == "status":
            self._waiting = message
            self._loop.later(float(message["wait"]), lambda: self._report(message))
            return None
        self._loop.later(0, self._loop.stop)
        return {}

    def _open(self, message: frames.Message) -> frames.Message:
        """Listens on the address that peers use for this node: on the given ports, as far as they are free."""
        self._key, self._me = bytes.fromhex(message["key"]), int(message["me"])
        self._acceptor.set_key(self._key, self._me)
        family, address = resolve_address(str(message["address"]))
        for port in message["ports"]:
            try:
                self._acceptor.listen(bind_listener(family, (address, int(port))))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
        return {"address": address, "ports": self._acceptor.ports}

    def _take_in(self, link: socket.socket, peer: int, _keys: PeerKeys) -> None:
        self._unreached.pop(peer, None)
        self._exchange.join(link, peer, peer)

    def _dial_in_turn(self, peer: int) -> None:
        addresses = self._addresses[peer]
        if self._me < peer:
            self._dial(peer, addresses)
        else:
            self._loop.later(TURN_SECONDS, lambda: self._dial(peer, addresses))

    def _redial(self, peer: int) -> None:
        """After a lost or failed connection, a few times."""
        self._drops[peer] = self._drops.get(peer, 0) + 1
        if self._drops[peer] <= REDIALS and peer in self._addresses:
            self._loop.later(TURN_SECONDS, lambda: self._dial_in_turn(peer))

    def _dial(self, peer: int, addresses: list[tuple[str, int]]) -> None:
        """Tries the ports in turn: a firewall may let one of them through."""
        if peer in self._exchange.peers or peer in self._exchange.refused_peers:
            return
        if not addresses:
            self._redial(peer)
            return

        def try_next(why: str) -> None:
            self._unreached[peer] = why
            self._dial(peer, addresses[1:])

        def take_in(link: socket.socket, peer: int, _keys: PeerKeys) -> None:
            self._unreached.pop(peer, None)
            self._exchange.join(link, peer, self._me)

        family = socket.AF_INET6 if ":" in addresses[0][0] else socket.AF_INET
        link = socket.socket(family, socket.SOCK_STREAM)
        link.setblocking(False)
        handshake = DialerHandshake(self._loop, link, self._key, self._me, take_in, try_next)
        handshake.start(addresses[0], peer, CONNECT_SECONDS)

    def _add(self, file: dict[str, Any]) -> frames.Message:
        path, complete = validate_folder(str(file["folder"])), bool(file["complete"])
        if not complete:
            make_receive_folder(path)
        if path not in self._folders:
            self._folders[path] = open_folder(path)
        self._exchange.add(
            int(file["first"]),
            PieceFile(
                self._folders[path],
                validate_file_name(file["name"]),
                int(file["size"]),
                str(file["sha256"]),
                int(file["piece"]),
                frames.text_to_bytes(file["hashes"]),
            ),
            complete=complete,
        )
        return {}

    def _take_piece(self, piece: int, at: int, data: memoryview) -> frames.Message:
        """A part of a piece from the head; the piece is verified and written when its last part is here."""
        length = self._exchange.locate(piece)[2]
        if at == 0:
            self._arriving.clear()
            self._arriving[piece] = bytearray()
        arrived = self._arriving[piece]
        if at != len(arrived) or at + len(data) > length:
            raise ValueError("a part of piece %d came at %d, not at %d" % (piece, at, len(arrived)))
        arrived += data
        if len(arrived) == length:
            del self._arriving[piece]
            self._exchange.take_from_head(piece, memoryview(arrived))
            if self._exchange.failure is not None:
                return describe_failure(self._exchange.failure)
        return {}

    def _report_completion(self) -> None:
        if self._waiting is not None:
            self._report(self._waiting)

    def _report(self, message: frames.Message) -> None:
        if self._waiting is not message:
            return
        self._waiting = None
        exchange = self._exchange
        if exchange.failure is not None:
            self._reply(message, describe_failure(exchange.failure))
            return
        self._reply(
            message,
            {
                "ready": exchange.ready,
                "have": exchange.describe(int(message["first"]), int(message["count"])),
                "links": sorted(exchange.peers),
                "unreached": sorted([peer, why] for peer, why in self._unreached.items()),
                "wrong": sorted(exchange.wrong),
                "silent": sorted(exchange.silent),
                "received": exchange.received,
                "fetched": exchange.fetched,
                "refused": self._acceptor.refused,
            },
        )
