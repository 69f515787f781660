"""A child of the bridge that writes or reads files. It may block on a disk; the bridge must not."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable

from aboard.agent import forked_work, frames
from aboard.agent.channel import Channel
from aboard.agent.event_loop import EventLoop
from aboard.agent.transfer.file_names import describe_failure
from aboard.agent.transfer.receive_folders import ReceiveFolders
from aboard.agent.transfer.send_files import SendFiles

CHUNK = 256 * 1024
SOCKET_BYTES = 1024 * 1024
# A request that takes longer returns its progress and is repeated: no request waits for a large disk.
BUDGET_SECONDS = 1.0
REAP_SECONDS = 0.2


class ReceiverProcess:
    """The bridge's side of a file receiver or reader: relays frame bodies to it, and its replies back, unchanged."""

    def __init__(
        self,
        loop: EventLoop,
        on_body: Callable[[bytes], None],
        on_gone: Callable[[], None],
        serve: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self.pid, fd = _fork_receiver(serve)
        self._on_gone = on_gone
        self._channel = Channel(loop, (fd, fd), on_body, self._handle_exit)

    def send(self, body: bytes) -> None:
        self._channel.send_body(body)

    def close(self) -> None:
        """Lets it exit, whatever it does."""
        self._channel.close()
        self._reap()

    def expect_exit(self) -> None:
        """It was asked to exit: do not report that it is gone."""
        self._on_gone = lambda: None

    def _handle_exit(self) -> None:
        self._on_gone()
        self._reap()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                self._loop.later(REAP_SECONDS, self._reap)


def serve_files(op: str, fd: int) -> None:
    """Reads files for the bridge, or writes them, with its end of a socket."""
    serve_frames(fd, SendFiles() if op == "fetch" else ReceiveFolders())


def _fork_receiver(serve: Callable[[int], None]) -> tuple[int, int]:
    """Returns its pid and our end of a socket; it exits when that closes."""
    ours, theirs = socket.socketpair()
    # A chunk of a file fits: fewer writes and switches between the two processes.
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    with theirs:
        return forked_work.fork_worker(lambda _report: serve(theirs.fileno()), theirs.fileno()), ours.detach()


def pack_reply(answer: frames.Message, content: bytes | None) -> bytes:
    return frames.pack(answer) if content is None else frames.pack_tailed(answer, content)


def serve_frames(
    fd: int,
    folders: ReceiveFolders | SendFiles,
    most: int = frames.LIMIT,
    unpack: Callable[[memoryview], tuple[frames.Message, memoryview]] = frames.unpack_parts,
    pack: Callable[[frames.Message, bytes | None], bytes] = pack_reply,
) -> None:
    """Answers requests of at most so many bytes, one after the other, until the other end leaves."""
    os.set_blocking(fd, True)
    reader = FrameReader(fd, most)
    try:
        while not folders.closed:
            body = reader.read()
            if body is None:
                break
            answer = pack(*_answer_request(folders, *unpack(body)))
            while answer:
                answer = answer[os.write(fd, answer) :]
    finally:
        folders.close()


class FrameReader:
    """Reads frame bodies into one buffer, which the next frame overwrites: the bytes of files are not copied."""

    def __init__(self, fd: int, most: int = frames.LIMIT) -> None:
        self._fd = fd
        self._most = most
        self._buffer = bytearray(CHUNK)

    def read(self) -> memoryview | None:
        """The next body; None at the end of the stream."""
        header = self._fill(frames.HEADER)
        if header is None:
            return None
        size = int.from_bytes(header, "big")
        if size > self._most:
            raise frames.FrameError("a frame of %d bytes is over the limit of %d" % (size, self._most))
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        return self._fill(size)

    def _fill(self, size: int) -> memoryview | None:
        view = memoryview(self._buffer)[:size]
        at = 0
        while at < size:
            count = os.readv(self._fd, [view[at:]])
            if not count:
                return None
            at += count
        return view


def _answer_request(
    folders: ReceiveFolders | SendFiles, message: frames.Message, tail: memoryview
) -> tuple[frames.Message, bytes | None]:
    try:
        answer = folders.take(message, tail, time.monotonic() + BUDGET_SECONDS)
    except OSError as error:
        answer = describe_failure(error, folders.path)
    except Exception as error:  # noqa: BLE001 - whatever a frame contains, it gets a reply
        answer = {"error": "%s: %s" % (type(error).__name__, error)}
    answer["re"] = message.get("id")
    return answer, answer.pop("tail", None)
