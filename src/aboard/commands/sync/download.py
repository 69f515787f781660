"""Copies files from a node to this machine, verified by SHA-256; interrupted transfers resume."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Literal, TypeVar

from aboard.agent import frames
from aboard.commands.sync.download_target import DownloadTarget, IncomingFile, WantedFile, is_link_inside
from aboard.commands.sync.reconnecting_channel import ReconnectingChannel
from aboard.core.cluster.file_transfer_errors import build_changed_error
from aboard.core.cluster.node import Node
from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses import AboardError, ProtocolError
from aboard.diagnoses.files import file_fetch
from aboard.diagnoses.untrusted import escape_text
from aboard.lazy_dataclass import dataclass
from aboard.transport.files.file_fetcher import FileFetcher, FilePiece, RemoteEntry, RemoteTree
from aboard.transport.files.file_sender import PIECE_BYTES
from aboard.transport.node_dialer import NodeDialer

# Kept free on this machine's disk.
SPARE = 64 * 1024 * 1024
PROGRESS_SECONDS = 0.1
COPIER_SECONDS = 60.0

DownloadPhase = Literal["listing", "hashing", "receiving", "done"]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class DownloadProgress:
    """The progress of one node in bytes: hashed there, or here."""

    node: str
    phase: DownloadPhase
    done: int
    total: int


OnDownload = Callable[[DownloadProgress], None]


@dataclass(frozen=True, kw_only=True)
class DownloadResult:
    """What a node's tree became here; `skipped` are links that lead out of it, what is no file, and `.git`."""

    files: int
    bytes: int
    received: int
    skipped: tuple[str, ...]


async def download_tree(
    node: Node, path: str, target: Path, dialer: NodeDialer, on_progress: OnDownload = lambda _progress: None
) -> DownloadResult:
    """Copies a directory's content, or one file, into `target`; files that are already there are not sent."""
    download = NodeDownload(node, dialer, on_progress)
    try:
        tree, repositories = _leave_out_git(await download.list_tree(path))
        listed = {entry.name: entry for entry in tree.entries if entry.kind == "file"}
        await run_locally(target, _require_room_for, target, listed.values())
        sums = await download.hash_files(tree.root, listed)
        wanted = [
            WantedFile(name=name, bytes=entry.bytes, sha256=sums[name], mode=entry.mode, modified_us=entry.modified_us)
            for name, entry in listed.items()
        ]
        failed = await download.fetch(tree.root, wanted, target)
        if failed:
            raise next(iter(failed.values()))
        skipped = (*repositories, *await run_locally(target, _make_others, tree, target))
        await download.leave()
    finally:
        await download.close()
    size = sum(file.bytes for file in wanted)
    return DownloadResult(files=len(wanted), bytes=size, received=download.received, skipped=skipped)


class NodeDownload:
    """The download from one node; it reconnects when the link is lost."""

    def __init__(self, node: Node, dialer: NodeDialer, on_progress: OnDownload = lambda _progress: None) -> None:
        self.node = node
        self._on_progress = on_progress
        self._channel = ReconnectingChannel(node, dialer, FileFetcher)
        self._reported_at = float("-inf")
        self.done = self._total = 0

    async def list_tree(self, path: str) -> RemoteTree:
        self.report("listing", now=True)
        return await self._channel.run(lambda fetcher: fetcher.list_tree(path))

    async def read_file(self, root: str, name: str, most: int) -> bytes:
        """The beginning of a small file, up to so many bytes."""
        content = bytearray()

        async def list_pieces() -> AsyncIterator[FilePiece]:
            content.clear()
            for at in range(0, most, PIECE_BYTES):
                yield FilePiece(job=None, name=name, at=at, bytes=min(PIECE_BYTES, most - at))

        async def take_piece(_piece: FilePiece, data: memoryview | AboardError) -> None:
            if isinstance(data, AboardError):
                raise data
            content.extend(data)

        await self._channel.run(lambda fetcher: fetcher.read(root, list_pieces(), take_piece))
        return bytes(content)

    async def summarize_marker(self, root: str, name: str) -> bytes:
        """A checkpoint's marker without its slices; b"" if it is not intact."""
        summary: bytes = await self._channel.run(lambda fetcher: fetcher.summarize_marker(root, name))
        return summary

    async def hash_files(self, root: str, files: Mapping[str, RemoteEntry]) -> dict[str, str]:
        """The hashes of these files on the node, by name; raises if one can't be read."""
        sums: dict[str, str] = {}
        total, before = sum(entry.bytes for entry in files.values()), 0
        while pending := [name for name in files if name not in sums]:
            found, read = await self._channel.run(lambda fetcher, pending=pending: fetcher.sums(root, pending))  # type: ignore[misc]
            if not found and read <= before:
                raise ProtocolError(f"{self.node.name} is hashing {escape_text(pending[0])} without progress")
            before = 0 if found else read
            sums |= found
            self.done, self._total = sum(files[name].bytes for name in sums) + read, total
            self.report("hashing")
        for name, sha256 in sums.items():
            if not sha256:
                raise build_changed_error(self.node.name, f"{root}/{name}", "can't be read")
        return sums

    async def find_address(self) -> str:
        """The address by which other nodes reach this one."""

        async def read_hello(fetcher: FileFetcher) -> str:
            return str(fetcher.link.hello.get("address") or "")

        return self.node.fabric_address or await self._channel.run(read_hello) or self.node.target

    async def ask_copier(self, folder: str, do: str, **fields: object) -> frames.Message:
        """Asks the process that copies parts of checkpoints from and to other nodes."""
        return await self._channel.run(
            lambda fetcher: fetcher.ask_process("copier", COPIER_SECONDS, folder, do=do, **fields)
        )

    async def fetch(self, root: str, files: Sequence[WantedFile], target: Path) -> dict[str, AboardError]:
        """Fetches the files that are not here yet; returns the errors of single files, by name."""
        self.done, self._total = 0, sum(file.bytes for file in files)
        with await run_locally(target, DownloadTarget(target).__enter__) as folder:
            job = _FetchJob(self, root, folder)
            for file in files:
                if await run_locally(target, folder.has, file):
                    self.done += file.bytes
                else:
                    job.pending[file.name] = file
            _require_room(folder, job.pending.values())
            while job.pending:
                await self._channel.run(job.run)
        self.report("done", now=True)
        return job.failed

    @property
    def received(self) -> int:
        return self._channel.transferred

    def count_received(self, count: int) -> None:
        self._channel.transferred += count
        self.done += count
        self.report("receiving")

    async def leave(self) -> None:
        """Gives the link back to the dialer."""
        await self._channel.leave()

    async def close(self) -> None:
        await self._channel.close()

    def report(self, phase: DownloadPhase, *, now: bool = False) -> None:
        if now or monotonic() - self._reported_at > PROGRESS_SECONDS:
            self._reported_at = monotonic()
            self._on_progress(
                DownloadProgress(node=self.node.name, phase=phase, done=min(self.done, self._total), total=self._total)
            )


class _FetchJob:
    """The files of one `fetch`: those that are still missing, and the errors of those that can't be had."""

    def __init__(self, download: NodeDownload, root: str, target: DownloadTarget) -> None:
        self.pending: dict[str, WantedFile] = {}
        self.failed: dict[str, AboardError] = {}
        self._download = download
        self._root = root
        self._target = target
        self._incoming: set[IncomingFile] = set()

    async def run(self, fetcher: FileFetcher) -> None:
        """One pass over the missing files; one whose earlier part turns out to be damaged stays missing."""
        before = self._download.done
        try:
            await fetcher.read(self._root, self._list_pieces(), self._take_piece)
        finally:
            for incoming in self._incoming:
                incoming.close()
            self._incoming.clear()
            if self.pending:
                # What is here of them is counted again by the next pass.
                self._download.done = before

    async def _list_pieces(self) -> AsyncIterator[FilePiece]:
        for file in list(self.pending.values()):
            incoming = await run_locally(self._target.path, self._target.receive, file)
            self._incoming.add(incoming)
            self._download.done += incoming.start
            at = incoming.start
            # A file that is empty or complete is one piece, too.
            while at == incoming.start or (at < file.bytes and incoming.open):
                size = min(PIECE_BYTES, file.bytes - at)
                yield FilePiece(job=incoming, name=file.name, at=at, bytes=size)
                at += max(size, 1)

    async def _take_piece(self, piece: FilePiece, data: memoryview | AboardError) -> None:
        incoming: IncomingFile = piece.job
        if not incoming.open:
            return
        if isinstance(data, AboardError):
            self._fail(incoming, data)
        elif len(data) < piece.bytes:
            self._fail(incoming, self._build_error(incoming, "became shorter while it was read"))
        else:
            await run_locally(self._target.path, incoming.write, piece.at, data)
            self._download.count_received(len(data))
            if piece.at + piece.bytes == incoming.file.bytes:
                await self._finish(incoming)

    async def _finish(self, incoming: IncomingFile) -> None:
        digest = await run_locally(self._target.path, incoming.publish)
        self._incoming.discard(incoming)
        if digest == incoming.file.sha256:
            del self.pending[incoming.file.name]
        elif incoming.start == 0:
            why = f"has sha256 {digest}, expected {incoming.file.sha256}"
            self._fail(incoming, self._build_error(incoming, why))

    def _fail(self, incoming: IncomingFile, error: AboardError) -> None:
        incoming.close()
        self._incoming.discard(incoming)
        self.failed[incoming.file.name] = error
        del self.pending[incoming.file.name]

    def _build_error(self, incoming: IncomingFile, why: str) -> AboardError:
        return build_changed_error(self._download.node.name, f"{self._root}/{incoming.file.name}", why)


async def run_locally(target: Path, work: Callable[..., T], *args: object) -> T:
    """Runs work on this machine's disk in a thread; a failed system call becomes an error about the target."""
    try:
        return await asyncio.to_thread(work, *args)
    except BlockingIOError:
        seen = f"another process is already receiving a file in {target}"
        raise AboardError(file_fetch.TARGET, seen, "busy", path=target) from None
    except OSError as error:
        name = error.filename if isinstance(error.filename, str) else ""
        path = os.path.join(target, name) if name else target  # noqa: PTH118 - a name of the node, shown and never opened
        seen = f"{escape_text(str(path), 300)} can't be written: {error.strerror}"
        raise AboardError(file_fetch.TARGET, seen, "write", path=path, folder=target) from error


def _require_room_for(target: Path, entries: Collection[RemoteEntry]) -> None:
    """Before the node hashes them: a file with gaps may be larger than any disk."""
    with DownloadTarget(target) as folder:
        _require_room(folder, [entry for entry in entries if not _has_size(target / entry.name, entry.bytes)])


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.lstat().st_size == size
    except OSError:
        return False


def _require_room(target: DownloadTarget, files: Iterable[WantedFile | RemoteEntry]) -> None:
    needed = sum(file.bytes for file in files) + SPARE
    free = target.count_free_bytes()
    if needed > SPARE and needed > free:
        seen = f"{format_size(needed)} is needed in {target.path}, but only {format_size(free)} is free"
        raise AboardError(file_fetch.TARGET, seen, "no-room", folder=target.path)


def _leave_out_git(tree: RemoteTree) -> tuple[RemoteTree, list[str]]:
    """The tree without `.git`, and what was left out: git, and many a prompt, runs what its config names."""
    names = [entry.name for entry in tree.entries if ".git" in entry.name.lower().split("/")]
    left = frozenset(names)
    kept = tuple(entry for entry in tree.entries if entry.name not in left)
    return RemoteTree(root=tree.root, entries=kept), [escape_text(name, 300) for name in names]


def _make_others(tree: RemoteTree, target: Path) -> tuple[str, ...]:
    """Makes empty directories, and links that stay inside, after all files: no file is written through a new link."""
    skipped = []
    with DownloadTarget(target) as folder:
        for entry in tree.entries:
            if entry.kind == "directory":
                folder.make_folder(entry.name)
        for entry in tree.entries:
            if entry.kind == "link" and is_link_inside(entry.name, entry.target.raw()):
                folder.make_link(entry.name, entry.target.raw())
            elif entry.kind in ("link", "other"):
                skipped.append(escape_text(entry.name, 300))
    return tuple(skipped)
