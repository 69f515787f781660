"""Reserves a free port for rank 0, and tells when rank 0 or somebody else listens on it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable

from aboard.agent.event_loop import EventLoop
from aboard.agent.network import port_owners
from aboard.agent.procfs import read_owner

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from aboard.agent.supervisor_events import Emit

# Often, once rank 0 is about to listen: the other ranks wait for it.
SOON_SECONDS = 0.02
HURRY_SECONDS = 10.0
POLL_SECONDS = 0.5
# Most programs that ever listen do so in their first minute.
OFTEN_SECONDS = 60.0
SELDOM_SECONDS = 5.0
JUDGE_SECONDS = 1.0


class PortReservations:
    """Ports that are bound but not listened on.

    With SO_REUSEADDR, Linux lets another socket that has it too (TCPStore's has) bind and listen beside ours. Binding
    without it fails if anybody has reserved the port, so we set it afterwards.
    """

    def __init__(self) -> None:
        self._kept: list[socket.socket] = []

    def reserve(self, port: int, fixed: bool) -> int:  # noqa: FBT001 - as it comes in a frame
        """Returns this port; if it is 0, or in use and not fixed, any free one."""
        try:
            return self._take(port)
        except OSError as error:
            if fixed or error.errno != errno.EADDRINUSE:
                raise OSError(error.errno, "port %d can't be had: %s" % (port, error.strerror)) from None
            return self._take(0)

    def close(self) -> None:
        while self._kept:
            self._kept.pop().close()

    def _take(self, port: int) -> int:
        with contextlib.ExitStack() as undo:
            try:
                reserved = undo.enter_context(_bind_port(port, reuse=False))
            except OSError as error:
                # Connections that linger after an earlier run are in the kernel's table, a reservation is not.
                if error.errno != errno.EADDRINUSE or not port_owners.has_connections(port):
                    raise
                reserved = undo.enter_context(_bind_port(port, reuse=True))
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = int(reserved.getsockname()[1])
            # Only an attempt to listen shows an existing listener.
            with _bind_port(port, reuse=True) as other:
                other.listen(1)
            undo.pop_all()
        self._kept.append(reserved)
        return port


class PortWatch:
    """Polls the kernel's table until the run listens on a port; reports each stranger that does.

    `list_pids` returns the run's processes on this node.
    """

    def __init__(self, loop: EventLoop, port: int, list_pids: Callable[[], set[int]], emit: Emit) -> None:
        self._loop = loop
        self._port = port
        self._list_pids = list_pids
        self._emit = emit
        self._began = time.monotonic()
        self._hurry_until = 0.0
        self._turn = 0
        self._judged: list[tuple[int, int]] = []
        self._judged_at = 0.0
        self._reported: set[tuple[int, int, bool]] = set()
        self._poll(0)

    def hurry(self) -> None:
        """Polls often for a while: rank 0 is about to listen, and the other ranks wait for it."""
        hurried = time.monotonic() < self._hurry_until
        self._hurry_until = time.monotonic() + HURRY_SECONDS
        if not hurried:
            self._turn += 1
            self._poll(self._turn)

    def _poll(self, turn: int) -> None:
        if turn < self._turn:
            return
        # An unreadable or unfamiliar /proc costs the watch, not the supervisor.
        with contextlib.suppress(OSError, ValueError, IndexError):
            if self._is_ours():
                self._emit({"kind": "listening", "port": self._port})
                self._turn += 1
                return
        now = time.monotonic()
        slow = POLL_SECONDS if now < self._began + OFTEN_SECONDS else SELDOM_SECONDS
        self._loop.later(SOON_SECONDS if now < self._hurry_until else slow, lambda: self._poll(turn))

    def _is_ours(self) -> bool:
        """Whether the run listens, and nobody else: one of two address families may be a stranger's."""
        listeners = port_owners.list_listeners(self._port)
        now = time.monotonic()
        # A rank in a container may not have been found yet: judge the same listeners again, but not each time.
        if not listeners or (listeners == self._judged and now < self._judged_at + JUDGE_SECONDS):
            return False
        pids = self._list_pids()
        uids = {os.getuid(), *map(read_owner, pids)}
        strangers = []
        for uid, inode in listeners:
            if any(port_owners.holds_socket(pid, inode) for pid in pids):
                continue
            owner = port_owners.describe_owner(uid, inode)
            # A process in a container may not be readable: then its user decides.
            if "pid" in owner or uid not in uids:
                strangers.append((uid, inode, owner))
        self._judged, self._judged_at = listeners, now
        beside = len(strangers) < len(listeners)
        for uid, inode, owner in strangers:
            if (uid, inode, beside) not in self._reported:
                self._reported.add((uid, inode, beside))
                self._emit(
                    {
                        "kind": "port_taken",
                        "port": self._port,
                        "beside": beside,
                        "uid": uid,
                        "user": owner["user"],
                        "pid": owner.get("pid", 0),
                        "name": owner.get("name", ""),
                        "run": owner.get("run", ""),
                    }
                )
        return not strangers


def _bind_port(port: int, *, reuse: bool) -> socket.socket:
    family, address = (socket.AF_INET6, "::") if socket.has_ipv6 else (socket.AF_INET, "")
    try:
        return _bind_socket(family, address, port, reuse=reuse)
    except OSError as error:
        if error.errno == errno.EADDRINUSE or family == socket.AF_INET:
            raise
        # The kernel supports IPv6, but it is disabled.
        return _bind_socket(socket.AF_INET, "", port, reuse=reuse)


def _bind_socket(family: int, address: str, port: int, *, reuse: bool) -> socket.socket:
    with contextlib.ExitStack() as undo:
        listener = undo.enter_context(socket.socket(family))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address, port))
        undo.pop_all()
    return listener
