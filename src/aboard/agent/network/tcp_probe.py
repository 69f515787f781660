"""Connects to all peers at once and distinguishes how connections fail. Runs in a child, which may block."""

from __future__ import annotations

import _thread
import errno
import os
import select
import socket
import time

from aboard.agent import frames
from aboard.agent.network.peer_listener import CHUNK, ECHO, TOKEN_SECONDS

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from typing import Any, Union

    Found = Union[list[tuple[int, Any]], str]

# Fits any packet: if only larger data is lost, its size is the reason.
SMALL = 64
RESOLVERS = 16
NO_NAME = "timed out"
# The size of a target that is only connected to, and gets no data.
CONNECT_ONLY = -1
# Time reserved for the reply itself.
SPARE = 0.3
REJECTED_ERRNOS = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM, errno.ENETDOWN, errno.EHOSTDOWN)
FAILURE_OUTCOMES = {errno.ECONNREFUSED: "refused", errno.ETIMEDOUT: "dropped"}
FAILURE_OUTCOMES.update(dict.fromkeys(REJECTED_ERRNOS, "rejected"))
# The outcome of a timeout, by the stage of the connection.
TIMEOUT_OUTCOMES = {"waiting": "untried", "connecting": "dropped", "small": "silent", "large": "stalled"}


def connect_to_peers(message: frames.Message) -> frames.Message:
    """Connects to each target, sends and awaits the echo: first a little, then the target's size, unless CONNECT_ONLY.

    A result is [outcome, seconds, own address, the peer's address, the system's error text].
    """
    end = time.monotonic() + float(message["timeout"]) - SPARE
    own = os.uname().nodename
    token = str(message.get("token", "")).encode()
    probes = [_TcpProbe(str(name), int(port), int(size), token) for name, port, size in message["targets"]]
    names = NameResolver({own, *(dial.name for dial in probes), *map(str, message.get("resolve", ()))})
    _ProbeRunner(probes, names, float(message["seconds"]), int(message.get("parallel", 256))).run(end)
    return {"hostname": own, "resolved": names.list_results(), "results": [dial.result() for dial in probes]}


class _ProbeRunner:
    """Runs probes in parallel until each has its outcome or the time is over."""

    def __init__(self, probes: list[_TcpProbe], names: NameResolver, seconds: float, parallel: int) -> None:
        self._names = names
        self._seconds = seconds
        self._parallel = parallel
        self._waiting = list(probes)
        self._open: dict[int, _TcpProbe] = {}
        self._poll = select.poll()

    def run(self, end: float) -> None:
        self._poll.register(self._names.wake, select.POLLIN)
        while self._waiting or self._open or self._names.open:
            self._start()
            now = time.monotonic()
            if now >= end:
                break
            soonest = min([end, *(probe.began + self._seconds for probe in self._open.values())])
            for fd, _events in self._poll.poll(max(0.0, soonest - now) * 1000 + 1):
                if fd == self._names.wake:
                    os.read(fd, 4096)
                else:
                    self._step(fd, self._open[fd])
            self._expire()
        for probe in self._waiting:
            if self._names.find(probe.name) is None:
                probe.end("unresolved", NO_NAME)

    def _start(self) -> None:
        for probe in list(self._waiting):
            resolved = self._names.find(probe.name)
            if resolved is None:
                continue
            if len(self._open) >= self._parallel:
                return
            self._waiting.remove(probe)
            if isinstance(resolved, str):
                probe.end("unresolved", resolved)
            else:
                probe.addresses = list(resolved)
                self._dial(probe)

    def _dial(self, probe: _TcpProbe) -> None:
        """Tries its next address, and the following ones if it fails at once, like socket.create_connection."""
        while probe.addresses:
            fd = probe.begin(*probe.addresses.pop(0))
            if fd is not None:
                self._open[fd] = probe
                self._poll.register(fd, select.POLLOUT)
                return

    def _step(self, fd: int, probe: _TcpProbe) -> None:
        poll_mask = probe.step()
        if poll_mask:
            self._poll.modify(fd, poll_mask)
            return
        self._close_probe(fd)
        if probe.outcome in ("refused", "rejected"):
            self._dial(probe)

    def _expire(self) -> None:
        now = time.monotonic()
        for fd, probe in list(self._open.items()):
            if now - probe.began >= self._seconds:
                self._close_probe(fd)

    def _close_probe(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._open.pop(fd).close()


class _TcpProbe:
    """One target: its stage and its outcome."""

    def __init__(self, name: str, port: int, size: int, token: bytes) -> None:
        self.name = name
        self.outcome: str | None = None
        self.began = 0.0
        self.addresses: list[tuple[int, Any]] = []
        self._port = port
        self._size = size
        self._token = token
        self._stage = "waiting"
        self._socket: socket.socket | None = None
        self._unsent = b""
        self._awaited = 0
        self._seconds = 0.0
        self._said = ""
        self._ends = ("", "")

    def begin(self, family: int, to: Any) -> int | None:
        """The descriptor of a pending connection; None if it fails at once."""
        self.outcome, self.began, self._stage = None, time.monotonic(), "connecting"
        self._ends = ("", str(to[0]))
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            code = self._socket.connect_ex((to[0], self._port, *to[2:]))
        except OSError as error:
            code = error.errno or errno.EIO
        if code in (0, errno.EINPROGRESS) and self._socket is not None:
            return self._socket.fileno()
        self._fail(code)
        self.close()
        return None

    def step(self) -> int:
        """Continues as far as possible; returns the poll mask to wait for, or 0 at the end."""
        try:
            return self._step()
        except BlockingIOError:
            return select.POLLIN | (select.POLLOUT if self._unsent else 0)
        except OSError as error:
            self._fail(error.errno or errno.EIO)
            return 0

    def end(self, outcome: str, reason: str = "") -> None:
        self.outcome, self._said = outcome, reason
        self._seconds = time.monotonic() - self.began if self.began else 0.0

    def close(self) -> None:
        if self._socket is not None:
            if self.outcome is None:
                # With a lossy link some of it comes back; where packets are too large for the path, nothing does.
                some = self._stage == "large" and self._awaited < self._size
                self.end("crawled" if some else TIMEOUT_OUTCOMES[self._stage])
            self._socket.close()
            self._socket = None

    def result(self) -> list[Any]:
        if self.outcome is None:
            self.end(TIMEOUT_OUTCOMES[self._stage])
        return [self.outcome, round(self._seconds, 4), *self._ends, self._said]

    def _step(self) -> int:
        link = self._socket
        assert link is not None  # noqa: S101 - an open probe has one
        if self._stage == "connecting":
            self._confirm(link)
            if self._size == CONNECT_ONLY:
                self.end("ok")
                return 0
            self._send("small", self._token + ECHO, SMALL)
        return self._exchange(link)

    def _confirm(self, link: socket.socket) -> None:
        code = link.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        self._ends = (link.getsockname()[0], self._ends[1])

    def _exchange(self, link: socket.socket) -> int:
        while True:
            while self._unsent:
                try:
                    self._unsent = self._unsent[link.send(self._unsent) :]
                except BlockingIOError:
                    break
            data = link.recv(CHUNK)
            if not data and self._stage == "small" and time.monotonic() - self.began >= TOKEN_SECONDS:
                # The listener waited in vain for the token.
                self.end("silent")
                return 0
            if not data:
                raise ConnectionResetError(errno.ECONNRESET, "closed by the peer")
            self._awaited -= len(data)
            if self._awaited <= 0:
                if self._stage == "large" or not self._size:
                    self.end("ok")
                    return 0
                self._send("large", b"", self._size)

    def _send(self, stage: str, head: bytes, size: int) -> None:
        self._stage = stage
        self._unsent = head + bytes(size)
        self._awaited = size

    def _fail(self, code: int) -> None:
        self.end(FAILURE_OUTCOMES.get(code, "reset"), os.strerror(code))


class NameResolver:
    """Resolves names in threads: getaddrinfo blocks, and a dead name server must not delay the rest.

    `wake` becomes readable when a result arrives.
    """

    def __init__(self, names: set[str]) -> None:
        self._names = sorted(names)
        self._left = list(self._names)
        self._found: dict[str, Found] = {}
        self.wake, self._waker = os.pipe()
        for _ in range(min(RESOLVERS, len(names))):
            _thread.start_new_thread(self._resolve, ())

    def find(self, name: str) -> Found | None:
        """Families and addresses, or why there are none; None while pending."""
        return self._found.get(name)

    @property
    def open(self) -> bool:
        return len(self._found) < len(self._names)

    def list_results(self) -> dict[str, list[str] | str]:
        """The addresses of each name, or why there are none."""
        return {name: _format_addresses(self._found.get(name)) for name in self._names}

    def _resolve(self) -> None:
        while True:
            try:
                name = self._left.pop()
            except IndexError:
                return
            try:
                # As bytes: to encode a str, Python would import its tables for international names first.
                addresses = socket.getaddrinfo(name.encode(), 0, 0, socket.SOCK_STREAM)
                self._found[name] = [(family, to) for family, _, _, _, to in addresses]
            except (OSError, UnicodeError) as error:
                self._found[name] = str(getattr(error, "strerror", None) or error)
            os.write(self._waker, b".")


def _format_addresses(addresses: Found | None) -> list[str] | str:
    if addresses is None:
        return NO_NAME
    return addresses if isinstance(addresses, str) else [to[0] for _family, to in addresses]
