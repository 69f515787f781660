"""Requests to the process on a node that writes or reads files; heartbeats notice a lost node within seconds."""

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Annotated, Any, ClassVar, TypeVar

from aboard.agent import frames
from aboard.core.decoding import DecodeError, Matching, MaxLength, Word, decode, decode_with
from aboard.diagnoses import AboardError, ProtocolError, TransportError, Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.transport.agent_link import AgentLink

ASK_SECONDS = 60.0
BEAT_SECONDS = 5.0
BEAT_PATIENCE = 10.0
# Files per request: all of their names must fit into one frame.
FILES_AT_ONCE = 5000

T = TypeVar("T")
NodePath = Annotated[Untrusted, MaxLength(4096)]
Digest = Annotated[str, Matching("[0-9a-f]{0,64}")]


@dataclass(frozen=True, kw_only=True)
class _FailureReply:
    errno: Word
    path: NodePath
    why: Annotated[Untrusted, MaxLength(400)]


@dataclass(frozen=True, kw_only=True)
class _HashReply:
    sums: Annotated[Mapping[NodePath, Digest], MaxLength(FILES_AT_ONCE)]
    read: int


class FileChannel:
    """One link while it carries files; subclasses make the requests. `op` names the process on the node."""

    op: ClassVar[str]

    def __init__(self, link: AgentLink, *, patience: float = ASK_SECONDS) -> None:
        self.link = link
        self._patience = patience
        self._why: TransportError | None = None
        self._answered = monotonic()
        link.on_frame = self._take_frame
        self._beating = asyncio.create_task(self._beat())

    async def sums(self, folder: str, names: Sequence[str]) -> tuple[dict[str, str], int]:
        """The hashes of the first of these, as many as fit into a second, and how much of the next one is read."""
        some = names[:FILES_AT_ONCE]
        reply = await self._ask("sums", folder, names=some)
        return self.parse_reply(reply, partial(_parse_hashes, some))

    async def leave(self) -> None:
        """Stops the process; the link stays usable."""
        try:
            await self._ask("leave", "")
        finally:
            await self._stop_beating()
            self.link.on_frame = lambda _message: None

    async def close(self) -> None:
        """Closes the link as well."""
        await self._stop_beating()
        await self.link.close()

    def _build_failure(self, errno: str, path: Untrusted, why: Untrusted) -> AboardError:
        """The error of a failed system call on the node."""
        raise NotImplementedError

    def _build_stuck(self, folder: str, within: float) -> AboardError:
        """The error of a disk that does not respond."""
        raise NotImplementedError

    async def _ask(self, do: str, folder: str, *, within: float | None = None, **fields: Any) -> frames.Message:
        return await self.ask_process(self.op, within or self._patience, folder, do=do, **fields)

    async def ask_process(self, op: str, within: float, folder: str, **fields: Any) -> frames.Message:
        """Asks this process, or another one of the node's agent over the same link."""
        try:
            reply = await self.link.ask(op, within, folder=folder, **fields)
        except Unreachable as error:
            if self._why is not None:
                raise self._why from None
            if error.reason is UnreachableReason.SILENT:
                raise self._build_stuck(folder, within) from None
            raise
        self._answered = monotonic()
        failed = reply.get("failed")
        if failed is not None:
            failure = self.parse_reply(reply, lambda _: decode(_FailureReply, failed, strict=True))
            raise self._build_failure(failure.errno, failure.path, failure.why)
        return reply

    def parse_reply(self, reply: frames.Message, parse: Callable[[frames.Message], T]) -> T:
        """Parses a reply; a node's reply may have any shape."""
        try:
            return decode_with(parse, reply)
        except DecodeError as error:
            raise ProtocolError(f"{self.link.node.name} sent an invalid reply: {error}") from None

    def _take_frame(self, message: frames.Message) -> None:
        if message.get("gone") == self.op:
            seen = f"{self.link.node.name}: the process that copies files there exited"
            self._lose(Unreachable(UnreachableReason.LOST, seen))

    async def _beat(self) -> None:
        """Keeps the agent from closing an idle link, and gives up a silent one."""
        while self._why is None:
            try:
                await self.link.ask("ping", BEAT_PATIENCE)
            except TransportError as error:
                # On a very slow link a heartbeat waits behind chunks, and those are acknowledged.
                if self.link.lost is not None or monotonic() - self._answered > BEAT_PATIENCE:
                    self._lose(error)
            else:
                await asyncio.sleep(BEAT_SECONDS)

    def _lose(self, why: TransportError) -> None:
        if self._why is None:
            self._why = why
            closing = asyncio.create_task(self.link.close())
            _CLOSING.add(closing)
            closing.add_done_callback(_CLOSING.discard)

    async def _stop_beating(self) -> None:
        self._beating.cancel()
        await asyncio.wait([self._beating])


def _parse_hashes(names: Sequence[str], reply: frames.Message) -> tuple[dict[str, str], int]:
    hashes = decode(_HashReply, reply, strict=True)
    return {require_known_name(name, names): sha256 for name, sha256 in hashes.sums.items()}, hashes.read


def require_known_name(name: Untrusted, names: Container[str]) -> str:
    known = name.as_known(names)
    if known is None:
        raise ValueError("a file that was not requested")
    return known


_CLOSING: set[asyncio.Task[Any]] = set()
