"""The upload to one node: finds which files it lacks and sends them, reconnecting when the link is lost."""

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from time import monotonic
from typing import Self, TypeVar

from aboard.commands.sync.node_transfer import DirectoryState, NodeTransfer
from aboard.commands.sync.sync_directory import SyncDirectory
from aboard.content_hash_cache import make_changed_error, read_file_stamp
from aboard.core.cluster.file_sync import OnProgress, UploadProgress
from aboard.core.cluster.file_transfer_errors import build_busy_error, build_hash_error
from aboard.core.cluster.node import Node
from aboard.diagnoses import AboardError, ProtocolError
from aboard.durable_files import FileEntry, compute_sha256
from aboard.file_integrity import make_damage_error
from aboard.lazy_dataclass import dataclass
from aboard.transport.files.file_sender import FileSender, FolderContents
from aboard.transport.node_dialer import NodeDialer

# The agent of a head that disconnected silently exits after 30 s; until then it keeps the file locked.
BUSY_SECONDS = 45.0
ASK_AGAIN_SECONDS = 0.2

T = TypeVar("T")


@dataclass(kw_only=True)
class _UploadState(DirectoryState):
    directory: SyncDirectory
    found: dict[str, FileEntry] = field(default_factory=dict)
    assembled: set[str] = field(default_factory=set)

    @property
    def lacking(self) -> tuple[FileEntry, ...]:
        """The files that the node lacks, in the order of the directory."""
        gaps = {*self.directory.find_gaps(self.found)}
        return tuple(file for file in self.directory.files if file in gaps)


class NodeUpload(NodeTransfer[FileSender]):
    """The upload to one node, from the first check to the last file."""

    def __init__(
        self,
        node: Node,
        directories: Sequence[SyncDirectory],
        dialer: NodeDialer,
        turns: asyncio.Semaphore,
        on_progress: OnProgress,
    ) -> None:
        self._places = [_UploadState(to=directory.to, directory=directory) for directory in directories]
        super().__init__(node, self._places, dialer, FileSender, on_progress)
        self.had = 0
        self._turns = turns
        self._whole = self._at = self._total = self._in_pieces = 0

    @property
    def extra(self) -> tuple[str, ...]:
        checked = [(place.to, place.contents) for place in self._places if place.contents is not None]
        return tuple(f"{to}/{name.visible(4096)}" for to, contents in checked for name in contents.extra)

    async def survey(self) -> None:
        """Queries which files the node has: sizes first, then hashes of those with the right size."""
        for place in self._places:
            await self._sender.run(partial(self._check_files, place))
        self._total = sum(file.bytes for place in self._places for file in place.lacking)
        self.had = sum(place.directory.bytes for place in self._places) - self._total

    def needs(self) -> Iterator[tuple[str, int, FolderContents]]:
        """The bytes that each incomplete directory needs on its disk; those of partly sent files count as present."""
        for place in self._places:
            if place.lacking and place.contents is not None:
                parts = place.contents.parts
                count = sum(file.bytes - parts.get(file.name, 0) for file in place.lacking)
                yield place.to, count, place.contents

    def lacks(self, place: int) -> bool:
        return bool(self._places[place].lacking)

    def list_files(self, place: int) -> Mapping[str, FileEntry]:
        """The files of a directory that the node has, each with the hash that the node computed."""
        return self._places[place].found

    def fills(self, place: int) -> bool:
        """Whether no other node fills this directory on the same disk."""
        return self._places[place].first is None

    def lacks_file(self, place: int, file: FileEntry) -> bool:
        return self._places[place].found.get(file.name) != file

    def count_piece_bytes(self, count: int) -> None:
        """Counts bytes that went to this node for it and its peers."""
        self._sender.transferred += count

    def report_pieces(self, present: int) -> None:
        """Reports the bytes of pieces that are there, from whomever they came."""
        self._in_pieces = present
        self._report("sending")

    def note_assembled(self, place: int, file: FileEntry) -> None:
        """All pieces of this file are there, verified: only its name is missing."""
        self._places[place].assembled.add(file.sha256)

    async def run(self, work: Callable[[FileSender], Awaitable[T]]) -> T:
        """Runs `work` with this node's link; again with a new one if the link is lost."""
        return await self._sender.run(work)

    async def deliver(self) -> None:
        """Sends the missing files; where another node fills the same disk, waits for it and verifies the result."""
        for number, place in enumerate(self._places):
            if await self.wait_for_first(number):
                await self._sender.run(partial(self._check_files, place))
            if place.lacking:
                async with self._turns:
                    for file in place.lacking:
                        await self._sender.run(partial(self._send, place, file))
            place.filled.set()
        self._whole, self._at = self._total, 0
        self._report("done", now=True)

    async def _check_files(self, place: _UploadState, sender: FileSender) -> None:
        directory = place.directory
        place.contents = await sender.list_folder(
            directory.to, [(file.name, file.bytes, file.sha256) for file in directory.files]
        )
        sizes = {file.name: file.bytes for file in directory.files}
        place.found.clear()
        pending = [name for name in sizes if name in place.contents.fits]
        total, done, before = sum(sizes[name] for name in pending), 0, 0
        while pending:
            sums, read = await sender.sums(directory.to, pending)
            if not sums and read <= before:
                raise ProtocolError(f"{self.node.name} is hashing {pending[0]} without progress")
            before = 0 if sums else read
            for name, sha256 in sums.items():
                if sha256:
                    place.found[name] = FileEntry(name=name, bytes=sizes[name], sha256=sha256)
                done += sizes[name]
            pending = [name for name in pending if name not in sums]
            self._on_progress(UploadProgress(node=self.node.name, phase="looking", done=done + read, total=total))

    async def _send(self, place: _UploadState, file: FileEntry, sender: FileSender) -> None:
        """Resumes an interrupted transfer; if the result is damaged, sends the file again from the beginning."""
        to = place.directory.to
        with UploadSource(place.directory, file) as source:
            while True:
                start = await self._negotiate_offset(sender, place, file, source.mode)
                self._at = start
                await sender.send(to, start, file.bytes, source.read, self._count_sent)
                sha256 = await sender.publish(to)
                place.assembled.discard(file.sha256)
                if sha256 == file.sha256:
                    break
                if start == 0:
                    await asyncio.to_thread(source.judge)
                    raise build_hash_error(self.node.name, f"{to}/{file.name}", wanted=file.sha256, found=sha256)
        place.found[file.name] = FileEntry(name=file.name, bytes=file.bytes, sha256=sha256)
        self._whole, self._at = self._whole + file.bytes, 0

    async def _negotiate_offset(self, sender: FileSender, place: _UploadState, file: FileEntry, mode: int) -> int:
        to, began, hashed = place.directory.to, monotonic(), 0
        while True:
            ready = await sender.receive(
                to, (file.name, file.bytes, file.sha256), mode=mode, assembled=file.sha256 in place.assembled
            )
            if ready.at is not None:
                return ready.at
            if ready.busy:
                if monotonic() - began > BUSY_SECONDS:
                    raise build_busy_error(self.node.name, to, file.name)
                await asyncio.sleep(ASK_AGAIN_SECONDS)
            elif ready.hashed > hashed:
                hashed = ready.hashed
            else:
                raise ProtocolError(f"{self.node.name} is hashing a part of {file.name} without progress")

    def _count_sent(self, count: int) -> None:
        self._sender.transferred += count
        self._at += count
        self._report("sending")

    def _count_done(self) -> tuple[int, int]:
        return max(self._whole + self._at, self._in_pieces), self._total


class UploadSource:
    """A local file, opened once for all its chunks as a context manager."""

    def __init__(self, directory: SyncDirectory, file: FileEntry) -> None:
        self._path = directory.folder / file.name
        self._file = file
        self._prepared = directory.prepared

    def __enter__(self) -> Self:
        self._stamp = read_file_stamp(self._path)
        if self._stamp[0] != self._file.bytes:
            raise self._make_damaged_error(f"it has {self._stamp[0]} bytes, expected {self._file.bytes}")
        self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self.mode = stat.S_IMODE(os.fstat(self._fd).st_mode) & 0o777
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._fd)

    def read(self, at: int, size: int) -> bytes:
        """Reads exactly `size` bytes; may block, so it runs in a thread."""
        data = os.pread(self._fd, size, at)
        if len(data) != size:
            raise make_changed_error(self._path)
        return data

    def judge(self) -> None:
        """Raises if the local file has changed or is damaged; otherwise the node is at fault."""
        if read_file_stamp(self._path) != self._stamp:
            raise make_changed_error(self._path)
        digest = compute_sha256(self._path)
        if digest != self._file.sha256:
            raise self._make_damaged_error(f"its sha256 is {digest}, expected {self._file.sha256}")

    def _make_damaged_error(self, why: str) -> AboardError:
        """Prepared data can be rebuilt; a user's own file can't, but may have been changed on purpose."""
        return make_damage_error(self._path, why) if self._prepared else make_changed_error(self._path)
