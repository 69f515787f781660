"""The head's side of a file transfer to a node: queries what is there and sends files within a send window."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Generic, Self, TypeVar

from aboard.agent import frames
from aboard.core.cluster.file_transfer_errors import build_stuck_error, build_write_error
from aboard.core.decoding import MaxLength, decode
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.transport.files.file_channel import FILES_AT_ONCE, Digest, FileChannel, NodePath, require_known_name

PIECE_BYTES = 512 * 1024
# How much is read from our own disk at once.
BLOCK_BYTES = 2 * PIECE_BYTES
# A disk much slower than the network still has most of a file to write when its last byte arrives.
SYNC_SECONDS = 600.0

T = TypeVar("T")
_Marks = frozenset[Annotated[str, MaxLength(200)]]
ExpectedFile = tuple[str, int, str]
"""A file's name, size and sha256."""
ReadBlock = Callable[[int, int], bytes]


@dataclass(frozen=True, kw_only=True)
class FolderContents:
    """Which files a node has, by size alone, and its free space; `nearest` is the closest existing directory."""

    fits: frozenset[str]
    parts: Mapping[str, int]
    free: int
    device: int
    writable: bool
    nearest: Untrusted
    extra: tuple[Untrusted, ...]


@dataclass(frozen=True, kw_only=True)
class _FolderReply:
    fits: Annotated[tuple[NodePath, ...], MaxLength(FILES_AT_ONCE)]
    parts: Annotated[Mapping[NodePath, int], MaxLength(FILES_AT_ONCE)]
    free: int
    device: int
    writable: bool
    nearest: NodePath
    extra: tuple[NodePath, ...]


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """The offset to send a file from; None while the node still hashes its part, or while another head sends it."""

    at: int | None = None
    hashed: int = 0
    busy: bool = False


class FileSender(FileChannel):
    """The process on the node that writes files."""

    op = "porter"

    async def list_folder(self, folder: str, files: Sequence[ExpectedFile]) -> FolderContents:
        """Lists which of these files a node has, by size only, which is cheap for the node."""
        parts: dict[str, int] = {}
        fits: frozenset[str] = frozenset()
        start = 0
        while True:
            some = files[start : start + FILES_AT_ONCE]
            reply = await self._ask("look", folder, files=some)
            contents = self.parse_reply(reply, partial(_parse_contents, some))
            parts |= contents.parts
            fits |= contents.fits
            start += FILES_AT_ONCE
            if start >= len(files):
                return FolderContents(**{**vars(contents), "fits": fits, "parts": parts})

    async def mark(self, folder: str, mark: str) -> None:
        """Makes the directory and a temporary mark in it: nodes that see the mark share the disk."""
        await self._ask("mark", folder, mark=mark)

    async def marks(self, folder: str) -> frozenset[str]:
        reply = await self._ask("marks", folder)
        return self.parse_reply(reply, lambda reply: decode(_Marks, reply["marks"], strict=True))

    async def receive(
        self, folder: str, file: ExpectedFile, *, mode: int = 0o644, assembled: bool = False
    ) -> ResumePoint:
        """Announces a file and returns where to resume it; one that was assembled from pieces needs only its name.

        It gets its mode with its name: until then, no other user can read it.
        """
        name, size, sha256 = file
        reply = await self._ask("receive", folder, name=name, bytes=size, sha256=sha256, mode=mode, assembled=assembled)
        return self.parse_reply(reply, partial(_parse_resume_point, size))

    async def send(self, folder: str, start: int, size: int, read: ReadBlock, on_taken: Callable[[int], None]) -> None:
        """Sends the announced file from `start` on."""
        at, block, at_block = start, b"", start
        async with RequestsInFlight[int]() as requests:
            while at < size or requests:
                while at < size and requests.has_room(PIECE_BYTES):
                    if at == at_block + len(block):
                        block, at_block = await asyncio.to_thread(read, at, min(BLOCK_BYTES, size - at)), at
                    data = memoryview(block)[at - at_block : at - at_block + PIECE_BYTES]
                    request = self.ask_process("piece", self._patience, folder, tail=data, at=at)
                    requests.add(len(data), len(data), request)
                    at += len(data)
                # After a failure, the later ones fail as a consequence.
                count, task = await requests.take_first()
                task.result()
                on_taken(count)

    async def publish(self, folder: str) -> str:
        """Returns the hash of the received file; if it is right, the file now has its final name, durably."""
        reply = await self._ask("publish", folder, within=SYNC_SECONDS)
        return self.parse_reply(reply, lambda reply: decode(Digest, reply["sha256"], strict=True))

    def _build_failure(self, errno: str, path: Untrusted, why: Untrusted) -> AboardError:
        return build_write_error(self.link.node.name, errno, path, why)

    def _build_stuck(self, folder: str, within: float) -> AboardError:
        return build_stuck_error(self.link.node.name, folder, within)


def _parse_contents(files: Sequence[ExpectedFile], reply: frames.Message) -> FolderContents:
    sizes = {name: size for name, size, _ in files}
    contents = decode(_FolderReply, reply, strict=True)
    parts = {require_known_name(name, sizes): count for name, count in contents.parts.items()}
    if any(count > sizes[name] for name, count in parts.items()):
        raise ValueError("a partial file larger than the file")
    fits = frozenset(require_known_name(name, sizes) for name in contents.fits)
    return FolderContents(**{**vars(contents), "fits": fits, "parts": parts})


def _parse_resume_point(size: int, reply: frames.Message) -> ResumePoint:
    ready = decode(ResumePoint, reply, strict=True)
    if max(ready.at or 0, ready.hashed) > size or not (ready.busy or {"at", "hashed"} & reply.keys()):
        raise ValueError("an impossible number")
    return ready


# The longest that a heartbeat waits behind data; on a very slow link, until the smallest window is sent.
SPAN_SECONDS = 1.0
LEAST_WINDOW = 1024 * 1024
# Until the rate is known.
FIRST_WINDOW = 2 * LEAST_WINDOW
# ssh has at most 2 MB in flight per channel; the rest fills the pipes.
MOST_WINDOW = 4 * 1024 * 1024


class SendWindow:
    """Grows and shrinks with the rate of acknowledged bytes; the caller provides the clock."""

    def __init__(self) -> None:
        self.size = FIRST_WINDOW
        self._known_at: float | None = None
        self._taken: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add_acknowledged(self, count: int, now: float) -> None:
        self._taken.append((now, count))
        self._sum += count
        while self._taken[0][0] < now - SPAN_SECONDS:
            self._sum -= self._taken.popleft()[1]
        if self._known_at is None:
            self._known_at = now + SPAN_SECONDS
        least = LEAST_WINDOW if now >= self._known_at else FIRST_WINDOW
        self.size = max(least, min(MOST_WINDOW, self._sum))


class RequestsInFlight(Generic[T]):
    """Requests that are replied to in order, each with what it is about; those that are left at the end are cancelled.

    The window bounds their bytes, and with them our memory and the delay of a heartbeat.
    """

    def __init__(self) -> None:
        self._window = SendWindow()
        self._requests: deque[tuple[T, int, asyncio.Task[frames.Message]]] = deque()
        self._bytes = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [task for _item, _count, task in self._requests]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._requests)

    def has_room(self, count: int) -> bool:
        return self._bytes + count <= self._window.size

    def add(self, item: T, count: int, request: Coroutine[Any, Any, frames.Message]) -> None:
        self._requests.append((item, count, asyncio.create_task(request)))
        self._bytes += count

    async def take_first(self) -> tuple[T, "asyncio.Task[frames.Message]"]:
        """Waits for the first one, whether it succeeds or fails."""
        item, count, task = self._requests[0]
        await asyncio.wait([task])
        self._requests.popleft()
        self._bytes -= count
        self._window.add_acknowledged(count, asyncio.get_running_loop().time())
        return item, task
