"""A child of the bridge that writes or reads files. It may block on a disk; the bridge must not."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import time

from aboard.agent import frames
from aboard.agent.channel import Channel
from aboard.agent.event_loop import EventLoop
from aboard.agent.transfer.receive_folders import ReceiveFolders

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable

    from aboard.agent.transfer.send_files import SendFiles

    MakeHandler = Callable[[], "ReceiveFolders | SendFiles"]

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
        make_handler: MakeHandler = ReceiveFolders,
        serve: Callable[[int], None] | None = None,
    ) -> None:
        self._loop = loop
        self.pid, fd = _fork_receiver(serve or (lambda fd: _serve_frames(fd, make_handler())))
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


def _fork_receiver(serve: Callable[[int], None]) -> tuple[int, int]:
    """Returns its pid and our end of a socket; it exits when that closes."""
    ours, theirs = socket.socketpair()
    # A chunk of a file fits: fewer writes and switches between the two processes.
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    pid = os.fork()
    if pid == 0:
        _serve_and_exit(theirs.fileno(), serve)
    theirs.close()
    return pid, ours.detach()


def _serve_and_exit(fd: int, serve: Callable[[int], None]) -> None:
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        # One that hangs on a dead mount cannot be killed; it must not keep the transport open as well.
        os.dup2(0, 2)
        for other in map(int, os.listdir("/proc/self/fd")):
            if other > 2 and other != fd:  # noqa: PLR2004 - stdin, stdout and stderr
                with contextlib.suppress(OSError):
                    os.close(other)
        serve(fd)
    finally:
        os._exit(0)


def _serve_frames(fd: int, folders: ReceiveFolders | SendFiles) -> None:
    os.set_blocking(fd, True)
    reader = _FrameReader(fd)
    try:
        while not folders.closed:
            body = reader.read()
            if body is None:
                break
            answer = _answer_frame(folders, body)
            while answer:
                answer = answer[os.write(fd, answer) :]
    finally:
        folders.close()


class _FrameReader:
    """Reads frame bodies into one buffer, which the next frame overwrites: the bytes of files are not copied."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray(CHUNK)

    def read(self) -> memoryview | None:
        """The next body; None at the end of the stream."""
        header = self._fill(frames.HEADER)
        if header is None:
            return None
        size = int.from_bytes(header, "big")
        if size > frames.LIMIT:
            raise frames.FrameError("a frame of %d bytes is over the limit of %d" % (size, frames.LIMIT))
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


def _answer_frame(folders: ReceiveFolders | SendFiles, body: memoryview) -> bytes:
    message, tail = frames.unpack_parts(body)
    try:
        answer = folders.take(message, tail, time.monotonic() + BUDGET_SECONDS)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "")
        answer = {"failed": {"errno": name, "why": error.strerror or str(error), "path": folders.path_of(error)}}
    except Exception as error:  # noqa: BLE001 - whatever a frame contains, it gets a reply
        answer = {"error": "%s: %s" % (type(error).__name__, error)}
    answer["re"] = message.get("id")
    content = answer.pop("tail", None)
    return frames.pack(answer) if content is None else frames.pack_tailed(answer, content)
