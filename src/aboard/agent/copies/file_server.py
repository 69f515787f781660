"""Sends files of checkpoints to a peer that has proved to have the key, no faster than the limit allows."""

from __future__ import annotations

import os
import re
import socket
import stat
import time

from aboard.agent import frames
from aboard.agent.copies.copy_record import DIRECTORY, STEP
from aboard.agent.event_loop import EventLoop
from aboard.agent.transfer.root_folder import open_folder

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A request is short; a reply may be a list of files.
REQUEST_BYTES = 8192
TURN_BYTES = 1024 * 1024
# How far ahead of its limit a sender may be.
BURST_SECONDS = 0.25
PART = re.compile(r"rank-[\w.-]{1,100}|manifest\.json")
# On the node that is not rank 0's: the copies of what rank 0's node has beside the checkpoints.
FIRST_NODE = ".first-node"
BESIDE = re.compile(r"metrics(\.old-\d{1,6})?\.jsonl|trackers")
MOST_BESIDE = 2000
MOST_DEPTH = 8


class Pace:
    """A limit in bytes per second for all connections of a process; 0 is none."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._room = 0.0
        self._at = time.monotonic()

    def take(self, most: int) -> tuple[int, float]:
        """How much may be sent now; if that is nothing, after how many seconds something may be."""
        if not self._rate:
            return most, 0.0
        now = time.monotonic()
        burst = self._rate * BURST_SECONDS
        self._room = min(burst, self._room + (now - self._at) * self._rate)
        self._at = now
        count = min(most, int(self._room))
        # Few large writes instead of many small ones.
        if count < min(most, burst / 2):
            return 0, (min(most, burst / 2) - self._room) / self._rate + 0.001
        self._room -= count
        return count, 0.0

    def give_back(self, count: int) -> None:
        if self._rate:
            self._room += count


class FileServer:
    """One peer's requests, one after the other: a file from an offset on, or the list of files beside checkpoints."""

    def __init__(
        self, loop: EventLoop, link: socket.socket, root: str, pace: Pace, on_close: Callable[[FileServer], None]
    ) -> None:
        self._loop = loop
        self._link = link
        self._root = root
        self._pace = pace
        self._on_close = on_close
        self._received = b""
        self._unsent = b""
        self._file = -1
        self._at = self._left = 0
        self.open = True
        loop.on_readable(link.fileno(), self._readable)

    def close(self) -> None:
        if self.open:
            self.open = False
            self._loop.forget(self._link.fileno())
            self._link.close()
            self._close_file()
            self._on_close(self)

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _readable(self) -> None:
        try:
            data = self._link.recv(REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._received += data
        # Whoever sends more than one request at a time is none of our peers.
        if not data or self._file >= 0 or self._unsent or len(self._received) > REQUEST_BYTES:
            self.close()
            return
        if len(self._received) < frames.HEADER:
            return
        size = int.from_bytes(self._received[: frames.HEADER], "big")
        if size > REQUEST_BYTES:
            self.close()
        elif len(self._received) >= frames.HEADER + size:
            body, self._received = self._received[frames.HEADER :], b""
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        try:
            request = frames.unpack(body)
            if "list" in request:
                reply: frames.Message = {"files": list(list_beside(self._root, str(request["list"])))}
            else:
                self._file = open_part(self._root, str(request["folder"]), str(request["name"]))
                self._at, size = int(request["at"]), os.fstat(self._file).st_size
                self._left = max(0, min(size, int(request.get("size", size))) - max(0, self._at))
                reply = {"bytes": self._left}
        except OSError as error:
            reply = {"error": error.strerror or str(error)}
        except (ValueError, KeyError, TypeError) as error:
            reply = {"error": str(error)}
        self._unsent = frames.pack(reply)
        self._flush()

    def _flush(self) -> None:
        if not self.open:
            return
        self._loop.on_writable(self._link.fileno(), None)
        try:
            while self._unsent:
                self._unsent = self._unsent[self._link.send(self._unsent) :]
            turn = TURN_BYTES
            while self._left and turn > 0:
                count, wait = self._pace.take(min(self._left, turn))
                if not count:
                    self._loop.later(wait, self._flush)
                    return
                try:
                    sent = os.sendfile(self._link.fileno(), self._file, self._at, count)
                except BlockingIOError:
                    self._pace.give_back(count)
                    raise
                self._pace.give_back(count - sent)
                if not sent:
                    # The file is shorter now.
                    self.close()
                    return
                self._at, self._left, turn = self._at + sent, self._left - sent, turn - sent
        except BlockingIOError:
            self._loop.on_writable(self._link.fileno(), self._flush)
            return
        except OSError:
            self.close()
            return
        if self._left:
            # Others have their turn first.
            self._loop.on_writable(self._link.fileno(), self._flush)
        else:
            self._close_file()


def open_part(root: str, folder: str, name: str) -> int:
    """Opens a file of a checkpoint, or one beside the checkpoints, for reading; nothing else, and through no link."""
    if STEP.fullmatch(folder):
        if not PART.fullmatch(name):
            raise ValueError("%r is no file of a checkpoint" % name)
        parts = [name]
    else:
        parts = name.split("/")
        own = folder == "" and BESIDE.fullmatch(parts[0])
        if not (own or folder == FIRST_NODE) or len(parts) > MOST_DEPTH or not all(map(is_plain_name, parts)):
            raise ValueError("%r in %r is not copied" % (name, folder))
    fd = open_folder(root)
    try:
        for part in [*filter(None, [folder]), *parts[:-1]]:
            below = os.open(part, DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        opened = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise ValueError("%r is no file" % name)
    return opened


def is_plain_name(name: str) -> bool:
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def list_beside(root: str, folder: str) -> Iterator[list[object]]:
    """Path, size and modification time in ns of metrics and trackers, or of the copies of them; at most 2,000."""
    fd = open_folder(root)
    try:
        if folder == FIRST_NODE:
            below = os.open(FIRST_NODE, DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = below
        elif folder:
            raise ValueError("%r is not copied" % folder)
        found = 0
        for place, folders, names, place_fd in os.fwalk(".", dir_fd=fd):
            path = place[2:]
            is_top = not path and not folder
            if is_top:
                folders[:] = filter(BESIDE.fullmatch, folders)
            elif path.count("/") >= MOST_DEPTH - 2:
                folders.clear()
            for name in filter(BESIDE.fullmatch, names) if is_top else names:
                status = os.stat(name, dir_fd=place_fd, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and found < MOST_BESIDE:
                    found += 1
                    yield [os.path.join(path, name), status.st_size, status.st_mtime_ns]
    finally:
        os.close(fd)
