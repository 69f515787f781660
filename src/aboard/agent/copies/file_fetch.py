"""Fetches files from a peer that has proved to have the key, one at a time, and continues those that are half here."""

from __future__ import annotations

import contextlib
import os
import socket
import time

from aboard.agent import frames
from aboard.agent.copies.copy_record import DIRECTORY, WantedFile
from aboard.agent.copies.file_server import is_plain_name
from aboard.agent.event_loop import EventLoop
from aboard.agent.transfer.partial_file import PartialFile

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable

BUFFER_BYTES = 1024 * 1024
REPLY_BYTES = 1024 * 1024
# A part that is already here is hashed in steps, so that the head's requests don't wait.
HASH_SECONDS = 0.2
SILENT_SECONDS = 30.0


class PeerLost(Exception):
    """The connection ended; what has arrived stays."""


class PeerRefused(Exception):
    """The peer doesn't have the file, or refuses to send it."""


class WrongContent(Exception):
    """What arrived is not what was asked for; it is deleted."""


class FileFetch:
    """The connection to one peer; `on_done` gets None, or what went wrong, for the file or list that was asked for."""

    def __init__(self, loop: EventLoop, link: socket.socket, peer: int, on_close: Callable[[int], None]) -> None:
        self.peer = peer
        self.open = True
        self.received = 0
        self._loop = loop
        self._link = link
        self._on_close = on_close
        self._on_done: Callable[[Exception | None], None] | None = None
        self._on_list: Callable[[list[list[object]]], None] | None = None
        self._file: PartialFile | _PlainFile | None = None
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._reply = b""
        self._left = -1
        self._heard = time.monotonic()
        loop.on_readable(link.fileno(), self._readable)
        self._watch()

    def fetch(self, place: str, folder: int, file: WantedFile, on_done: Callable[[Exception | None], None]) -> None:
        """Fetches a file of a checkpoint into an open directory."""
        self._on_done = on_done
        try:
            partial = self._file = PartialFile(folder, file.name, file.size, file.sha256)
        except OSError as error:
            self._finish(error)
            return
        self._catch_up(partial, {"folder": place, "name": file.name})

    def fetch_beside(
        self, place: str, path: str, size: int, modified: int, root: int, on_done: Callable[[Exception | None], None]
    ) -> None:
        """Fetches a file that has no hash; it replaces the earlier one when it is complete."""
        self._on_done = on_done
        try:
            self._file = _PlainFile(root, path, size, modified)
        except (OSError, ValueError) as error:
            self._finish(error)
            return
        self._send({"folder": place, "name": path, "at": 0, "size": size})

    def list_beside(
        self,
        place: str,
        on_list: Callable[[list[list[object]]], None],
        on_failed: Callable[[Exception | None], None],
    ) -> None:
        self._on_list, self._on_done = on_list, on_failed
        self._send({"list": place})

    def close(self, error: Exception | None = None) -> None:
        if self.open:
            self.open = False
            self._loop.forget(self._link.fileno())
            self._link.close()
            self._on_close(self.peer)
            self._finish(error or PeerLost("the connection ended"))

    def _catch_up(self, partial: PartialFile, request: frames.Message) -> None:
        if not self.open:
            return
        self._heard = time.monotonic()
        try:
            is_hashed = partial.catch_up(self._heard + HASH_SECONDS)
        except OSError as error:
            self._finish(error)
            return
        if is_hashed:
            self._send(dict(request, at=partial.at))
        else:
            self._loop.later(0, lambda: self._catch_up(partial, request))

    def _send(self, request: frames.Message) -> None:
        self._reply, self._left, self._heard = b"", -1, time.monotonic()
        try:
            data = frames.pack(request)
            # A request is small, and nothing else is on the way to the peer.
            if self._link.send(data) != len(data):
                self.close()
        except OSError:
            self.close()

    def _watch(self) -> None:
        if self.open:
            if self._is_waiting() and time.monotonic() - self._heard > SILENT_SECONDS:
                self.close(PeerLost("no data for %d s" % SILENT_SECONDS))
            self._loop.later(SILENT_SECONDS / 4, self._watch)

    def _is_waiting(self) -> bool:
        return self._on_done is not None

    def _readable(self) -> None:
        try:
            if self._left > 0:
                count = self._link.recv_into(self._buffer[: min(self._left, BUFFER_BYTES)])
                self._take_data(count)
            else:
                data = self._link.recv(frames.HEADER - len(self._reply) if len(self._reply) < frames.HEADER else 65536)
                count = len(data)
                self._reply += data
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count or not self._is_waiting():
            # A peer that sends what nobody asked for is none of ours.
            self.close()
            return
        self._heard = time.monotonic()
        if self._left < 0:
            self._take_reply()

    def _take_reply(self) -> None:
        """Of a reply, exactly its frame is read: the bytes of the file follow."""
        if len(self._reply) < frames.HEADER:
            return
        size = int.from_bytes(self._reply[: frames.HEADER], "big")
        if size > REPLY_BYTES:
            self.close()
            return
        missing = frames.HEADER + size - len(self._reply)
        if missing:
            with contextlib.suppress(BlockingIOError, OSError):
                self._reply += self._link.recv(missing)
            if len(self._reply) < frames.HEADER + size:
                return
        try:
            self._follow(frames.unpack(self._reply[frames.HEADER :]))
        except (ValueError, KeyError, TypeError):
            self.close()

    def _follow(self, reply: frames.Message) -> None:
        if self._on_list is not None:
            on_list, on_failed = self._on_list, self._on_done
            self._on_list = self._on_done = None
            if "error" in reply and on_failed is not None:
                on_failed(PeerRefused(str(reply["error"])[:200]))
            else:
                on_list(reply["files"])
        elif "error" in reply:
            self._finish(PeerRefused(str(reply["error"])[:200]))
        elif self._file is not None:
            self._left = int(reply["bytes"])
            if self._left != self._file.size - self._file.at:
                self.close(PeerRefused("its file has another size"))
            elif not self._left:
                self._publish()

    def _take_data(self, count: int) -> None:
        if not count or self._file is None:
            return
        self._left -= count
        self.received += count
        try:
            self._file.write(self._file.at, self._buffer[:count])
        except OSError as error:
            self._finish(error)
            return
        if not self._left:
            self._publish()

    def _publish(self) -> None:
        self._left = -1
        file, self._file = self._file, None
        if file is None:
            return
        try:
            digest = file.publish()
        except OSError as error:
            self._finish(error)
        else:
            self._finish(None if digest == file.sha256 else WrongContent("its content is not what was saved"))

    def _finish(self, error: Exception | None) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._on_list = None
        on_done, self._on_done = self._on_done, None
        if error is not None and self.open and not isinstance(error, (PeerRefused, WrongContent)):
            # Bytes of this file may still be on their way.
            self.close(error)
        if on_done is not None:
            on_done(error)


class _PlainFile:
    """A file without a hash, below a directory: written under another name, and renamed with its time stamp."""

    sha256 = ""

    def __init__(self, root: int, path: str, size: int, modified: int) -> None:
        *parents, self._name = path.split("/")
        if not all(map(is_plain_name, (*parents, self._name))):
            raise ValueError("%r is no path below a directory" % path)
        self.size = size
        self.at = 0
        self._modified = modified
        self._folder = os.dup(root)
        for part in parents:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=self._folder)
            below = os.open(part, DIRECTORY, dir_fd=self._folder)
            os.close(self._folder)
            self._folder = below
        self._draft = ".aboard-%d.part" % os.getpid()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(self._draft, flags, 0o644, dir_fd=self._folder)

    def write(self, at: int, data: memoryview) -> None:
        while data:
            written = os.pwrite(self._fd, data, at)
            self.at, at, data = self.at + written, at + written, data[written:]

    def publish(self) -> str:
        os.utime(self._fd, ns=(self._modified, self._modified))
        os.rename(self._draft, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._draft = ""
        self.close()
        return ""

    def close(self) -> None:
        if self._fd >= 0:
            if self._draft:
                with contextlib.suppress(OSError):
                    os.unlink(self._draft, dir_fd=self._folder)
            os.close(self._fd)
            os.close(self._folder)
            self._fd = -1
