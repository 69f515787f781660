"""The head's side of an exchange of pieces between nodes: requests to the process that takes part on one node."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

from aboard.agent import frames
from aboard.agent.transfer.peer_connection import MOST_PIECES
from aboard.core.decoding import IpAddress, Matching, MaxLength, PortNumber, decode
from aboard.diagnoses import Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.transport.files.file_sender import FileSender, RequestsInFlight

PART_BYTES = 256 * 1024
# Longer than a node needs to resolve its own name and to write one piece.
ANSWER_SECONDS = 30.0
_MOST_PEERS = 10_000

_Bits = Annotated[str, Matching("([0-9a-f]{2})*"), MaxLength(MOST_PIECES // 4)]
_Peers = Annotated[frozenset[int], MaxLength(_MOST_PEERS)]


@dataclass(frozen=True, kw_only=True)
class PeerEndpoint:
    """Where a node listens for its peers."""

    address: IpAddress
    ports: Annotated[tuple[PortNumber, ...], MaxLength(8)]


@dataclass(frozen=True, kw_only=True)
class PieceTable:
    """A file in pieces: the number of the first one, the length of each but the last, and their hashes."""

    first: int
    folder: str
    name: str
    size: int
    sha256: str
    piece: int
    hashes: bytes

    @property
    def count(self) -> int:
        return -(-self.size // self.piece)


@dataclass(frozen=True, kw_only=True)
class PeerStatus:
    """What a node has, and its experience with each peer by number; `received` includes incomplete pieces."""

    ready: bool
    have: int
    links: frozenset[int]
    unreached: frozenset[int]
    wrong: frozenset[int]
    silent: frozenset[int]
    received: int
    fetched: int
    refused: int


@dataclass(frozen=True, kw_only=True)
class _StatusReply:
    ready: bool
    have: _Bits
    links: _Peers
    unreached: Annotated[tuple[tuple[int, Annotated[Untrusted, MaxLength(200)]], ...], MaxLength(_MOST_PEERS)]
    wrong: _Peers
    silent: _Peers
    received: int
    fetched: int
    refused: int


class PeerControl:
    """One node's part in an exchange, over the link that also carries its other files."""

    def __init__(self, sender: FileSender, folder: str) -> None:
        self._sender = sender
        self._folder = folder
        self._gone: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._others = sender.link.on_frame
        sender.link.on_frame = self._take_frame

    async def open(self, *, me: int, key: bytes, address: str, ports: Sequence[int]) -> PeerEndpoint:
        """Starts the process and its listener; the key travels here only, inside ssh."""
        reply = await self._ask("open", me=me, key=key.hex(), address=address, ports=list(ports))
        return self._sender.parse_reply(reply, partial(decode, PeerEndpoint, strict=True))

    async def dial(self, peers: Sequence[tuple[int, PeerEndpoint]]) -> None:
        """Connects to these peers; the status tells which of them answered."""
        await self._ask("dial", peers=[[number, at.address, at.ports] for number, at in peers])

    async def add(self, table: PieceTable, *, complete: bool) -> bool:
        """Adds a file; False while another process writes it."""
        file = {**vars(table), "hashes": frames.bytes_to_text(table.hashes), "complete": complete}
        return not (await self._ask("add", file=file)).get("busy")

    async def status(self, first: int, count: int, wait: float) -> PeerStatus:
        """The status after this time, or as soon as the node has everything."""
        reply = await self._ask("status", first=first, count=count, wait=wait)
        return self._sender.parse_reply(reply, partial(_parse_status, count))

    async def send(self, piece: int, data: memoryview, on_taken: Callable[[int], None]) -> None:
        """Sends one piece, which the node verifies and writes."""
        at = 0
        async with RequestsInFlight[int]() as requests:
            while at < len(data) or requests:
                while at < len(data) and requests.has_room(PART_BYTES):
                    part = data[at : at + PART_BYTES]
                    requests.add(len(part), len(part), self._request("peer-piece", tail=part, piece=piece, at=at))
                    at += len(part)
                count, task = await requests.take_first()
                task.result()
                on_taken(count)

    def leave(self) -> None:
        """Ends the process and its listener, without waiting; the link stays usable."""
        self._sender.link.on_frame = self._others
        self._sender.link.tell("peers", do="leave")

    async def _ask(self, do: str, **fields: Any) -> frames.Message:
        return await self._request("peers", do=do, **fields)

    async def _request(self, op: str, **fields: Any) -> frames.Message:
        asking: asyncio.Future[Any] = asyncio.ensure_future(
            self._sender.ask_process(op, ANSWER_SECONDS, self._folder, **fields)
        )
        try:
            await asyncio.wait((asking, self._gone), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                seen = f"{self._sender.link.node.name}: the process that exchanges pieces with peers exited"
                raise Unreachable(UnreachableReason.LOST, seen)
            reply: frames.Message = asking.result()
            return reply
        finally:
            asking.cancel()
            await asyncio.wait([asking])

    def _take_frame(self, message: frames.Message) -> None:
        if message.get("gone") == "peers" and not self._gone.done():
            self._gone.set_result(None)
        else:
            self._others(message)


def _parse_status(count: int, reply: frames.Message) -> PeerStatus:
    found = decode(_StatusReply, reply, strict=True)
    have = int.from_bytes(bytes.fromhex(found.have), "little")
    if have >> count or min(found.received, found.fetched, found.refused) < 0:
        raise ValueError("an impossible number")
    unreached = frozenset(peer for peer, _why in found.unreached)
    return PeerStatus(**{**vars(found), "have": have, "unreached": unreached})
