"""Reserves a free port for rank 0 until rank 0 listens on it."""

from __future__ import annotations

import contextlib
import errno
import socket

# An abstract socket name (unix(7)): visible to every user of this network, and gone with its owner.
NAME = "\0aboard/port/%d"


class PortReservations:
    """Ports that are bound but not listened on.

    With SO_REUSEADDR, Linux lets another socket that has it too (TCPStore's has) bind and listen beside ours. Two of
    ours would share a port as well, so each also takes a name, which only one can have.
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
            reserved = undo.enter_context(_bind_port(port))
            port = int(reserved.getsockname()[1])
            name = undo.enter_context(socket.socket(socket.AF_UNIX))
            name.bind(NAME % port)
            # Only an attempt to listen shows an existing listener.
            with _bind_port(port) as other:
                other.listen(1)
            undo.pop_all()
        self._kept += [reserved, name]
        return port


def _bind_port(port: int) -> socket.socket:
    family, address = (socket.AF_INET6, "::") if socket.has_ipv6 else (socket.AF_INET, "")
    try:
        return _bind_socket(family, address, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE or family == socket.AF_INET:
            raise
        # The kernel supports IPv6, but it is disabled.
        return _bind_socket(socket.AF_INET, "", port)


def _bind_socket(family: int, address: str, port: int) -> socket.socket:
    with contextlib.ExitStack() as undo:
        listener = undo.enter_context(socket.socket(family))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address, port))
        undo.pop_all()
    return listener
