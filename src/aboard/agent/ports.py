"""A port for rank 0: seen to be free, and kept from others until rank 0 listens on it."""

from __future__ import annotations

import contextlib
import errno
import socket

# An abstract name (unix(7)): seen by every user of this network, and gone with its owner.
NAME = "\0aboard/port/%d"


class Ports:
    """Ports that are bound and not listened on.

    With SO_REUSEADDR, Linux lets another socket that has it too (TCPStore's has) bind and listen beside ours. Two of
    ours would share a port as well, so each also takes a name, which only one can have.
    """

    def __init__(self) -> None:
        self._kept: list[socket.socket] = []

    def reserve(self, port: int, fixed: bool) -> int:  # noqa: FBT001 - as it comes in a frame
        """The port itself, or with one that is taken and not fixed, or with 0, any that is free."""
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
            kept = undo.enter_context(_bound(port))
            port = int(kept.getsockname()[1])
            name = undo.enter_context(socket.socket(socket.AF_UNIX))
            name.bind(NAME % port)
            # Somebody who listens already is seen only by whoever tries to.
            with _bound(port) as other:
                other.listen(1)
            undo.pop_all()
        self._kept += [kept, name]
        return port


def _bound(port: int) -> socket.socket:
    family, address = (socket.AF_INET6, "::") if socket.has_ipv6 else (socket.AF_INET, "")
    try:
        return _bind(family, address, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE or family == socket.AF_INET:
            raise
        # IPv6 is built in and switched off.
        return _bind(socket.AF_INET, "", port)


def _bind(family: int, address: str, port: int) -> socket.socket:
    with contextlib.ExitStack() as undo:
        made = undo.enter_context(socket.socket(family))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind((address, port))
        undo.pop_all()
    return made
