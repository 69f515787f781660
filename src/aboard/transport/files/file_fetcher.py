"""The head's side of a file transfer from a node: lists and hashes files there, and reads them within a window."""

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal

from aboard.agent import frames
from aboard.core.cluster.file_transfer_errors import build_name_error, build_read_error
from aboard.core.decoding import MaxLength, decode
from aboard.diagnoses import AboardError, ProtocolError
from aboard.diagnoses.files import file_fetch
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.transport.files.file_channel import FileChannel
from aboard.transport.files.file_sender import RequestsInFlight

# As many as the head keeps in memory for one node, whose names and links have at most so many characters together.
MOST_ENTRIES, MOST_CHARS = 1_000_000, 256 * 1024 * 1024
# Requests in flight, each about another small file: with more, the head would hold as many open files.
MOST_IN_FLIGHT = 64
MOST_SUMMARY = 64 << 20
_PAGE = 1000
_NAME_BYTES, _PATH_BYTES = 255, 4096
_OWN_PREFIX = ".aboard-"

EntryKind = Literal["file", "directory", "link", "other"]


@dataclass(frozen=True, kw_only=True)
class RemoteEntry:
    """One entry below a path of a node. Its name is relative and can't lead out of a directory; a link's target may."""

    name: str
    kind: EntryKind
    bytes: int
    mode: int
    modified_us: int
    target: Untrusted


@dataclass(frozen=True, kw_only=True)
class RemoteTree:
    """What is below `root`, directories first; if the requested path is a file, `root` is its directory."""

    root: str
    entries: tuple[RemoteEntry, ...]


@dataclass(frozen=True, kw_only=True)
class _EntryRow:
    name: Annotated[Untrusted, MaxLength(_PATH_BYTES + 1)]
    kind: EntryKind
    bytes: int
    mode: int
    modified_us: int
    target: Annotated[Untrusted, MaxLength(_PATH_BYTES)]


@dataclass(frozen=True, kw_only=True)
class _ListReply:
    entries: Annotated[tuple[_EntryRow, ...], MaxLength(_PAGE)]
    single: bool
    done: bool


@dataclass(frozen=True, kw_only=True)
class FilePiece:
    """A range of one file to read; `job` is the caller's."""

    job: Any
    name: str
    at: int
    bytes: int


class FileFetcher(FileChannel):
    """The process on the node that reads files."""

    op = "fetch"

    async def list_tree(self, path: str) -> RemoteTree:
        """Everything below a directory, or one file; a name that could lead out of a directory is refused."""
        found: dict[str, RemoteEntry] = {}
        page = chars = 0
        while True:
            reply = await self._ask("list", path, page=page)
            listed = self.parse_reply(reply, lambda reply: decode(_ListReply, reply, strict=True))
            if not listed.entries and not listed.done:
                raise ProtocolError(f"{self.link.node.name} is listing {path} without progress")
            for row in listed.entries:
                name = parse_relative_name(row.name)
                if name is None or name in found:
                    raise build_name_error(self.link.node.name, row.name)
                chars += len(name) + len(row.target)
                found[name] = RemoteEntry(**{**vars(row), "name": name, "mode": row.mode & 0o777})
            if len(found) > MOST_ENTRIES or chars > MOST_CHARS:
                seen = f"{self.link.node.name}: {path} has more than {MOST_ENTRIES:,} entries, or very long names"
                raise AboardError(file_fetch.TOO_MANY, seen, path=path, node=self.link.node.name)
            if listed.done:
                root = (path.rpartition("/")[0] or "/") if listed.single else path
                return RemoteTree(root=root, entries=tuple(found.values()))
            page += 1

    async def read(
        self,
        root: str,
        pieces: AsyncIterator[FilePiece],
        on_data: Callable[[FilePiece, "memoryview | AboardError"], Awaitable[None]],
    ) -> None:
        """Reads these pieces in order, and passes on each one's bytes, or the error of its file."""
        piece = await anext(pieces, None)
        async with RequestsInFlight[FilePiece]() as requests:
            while piece is not None or requests:
                while piece is not None and requests.has_room(piece.bytes) and len(requests) < MOST_IN_FLIGHT:
                    request = self._ask("read", root, name=piece.name, at=piece.at, bytes=piece.bytes)
                    requests.add(piece, piece.bytes, request)
                    piece = await anext(pieces, None)
                first, task = await requests.take_first()
                try:
                    data: memoryview | AboardError = self.parse_reply(task.result(), partial(_parse_bytes, first.bytes))
                except AboardError as error:
                    if error.diagnosis not in (file_fetch.MISSING, file_fetch.UNREADABLE):
                        raise
                    data = error
                await on_data(first, data)

    async def summarize_marker(self, root: str, name: str) -> bytes:
        """A checkpoint's marker without its slices, as JSON; b"" if it is not intact."""
        return self.parse_reply(await self._ask("marker", root, name=name), _parse_summary)

    def _build_failure(self, errno: str, path: Untrusted, why: Untrusted) -> AboardError:
        return build_read_error(self.link.node.name, errno, path, why)

    def _build_stuck(self, folder: str, within: float) -> AboardError:
        why = Untrusted(f"no data for {within:g} s, although the node responds")
        return build_read_error(self.link.node.name, "ETIMEDOUT", Untrusted(folder), why)


def parse_relative_name(name: Untrusted) -> str | None:
    """The name, if every part of it is a plain name: no `..`, no empty part, nothing absolute, none of our own."""
    text = name.raw()
    try:
        encoded = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None
    if b"\0" in encoded or len(encoded) > _PATH_BYTES:
        return None
    for part in encoded.split(b"/"):
        if part in (b"", b".", b"..") or len(part) > _NAME_BYTES or part.startswith(_OWN_PREFIX.encode()):
            return None
    return text


def _parse_summary(reply: frames.Message) -> bytes:
    tail = reply["tail"]
    if not isinstance(tail, memoryview):
        raise TypeError("no summary")
    try:
        return zlib.decompressobj().decompress(tail, MOST_SUMMARY) if tail else b""
    except zlib.error as error:
        raise ValueError(f"a damaged summary: {error}") from None


def _parse_bytes(size: int, reply: frames.Message) -> memoryview:
    tail = reply["tail"]
    if not isinstance(tail, memoryview) or len(tail) > size:
        raise ValueError("bytes that were not requested")
    return tail
