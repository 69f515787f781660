"""Who listens on a port of this host, and which process holds the socket."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from aboard.agent import frames
from aboard.agent.procfs import list_pids, read_kernel_file, read_link, read_name, resolve_user

LISTENING = "0A"
TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
AGENT_MARK = b"aboard: python"


def find_port_owner(port: int) -> frames.Message | None:
    """Who listens on a port, as far as an ordinary user may know: the process if it is theirs, else its user."""
    return next((describe_owner(uid, inode) for uid, inode in list_listeners(port)), None)


def list_listeners(port: int) -> list[tuple[int, int]]:
    """The user and the inode of each socket that listens on a port. Listening sockets come first in the table."""
    listeners = []
    for table in TABLES:
        for fields in _read_socket_table(table):
            if fields[3] != LISTENING:
                break
            if fields[1].endswith(":%04X" % port):
                listeners.append((int(fields[7]), int(fields[9])))
    return listeners


def has_connections(port: int) -> bool:
    """Whether a port has connections or listeners, also closed ones that linger."""
    return any(fields[1].endswith(":%04X" % port) for table in TABLES for fields in _read_socket_table(table))


def describe_owner(uid: int, inode: int) -> frames.Message:
    """A socket's process if we may see it, else its user only."""
    return {"user": resolve_user(uid), **_find_socket_process(inode)}


def holds_socket(pid: int, inode: int) -> bool:
    """Whether a process has this socket; we may not see that of another user's."""
    folder, link = "/proc/%d/fd" % pid, "socket:[%d]" % inode
    with contextlib.suppress(OSError):
        return any(read_link("%s/%s" % (folder, fd)) == link for fd in os.listdir(folder))
    return False


def _read_socket_table(path: str) -> Iterator[list[str]]:
    with contextlib.suppress(OSError), open(path, encoding="ascii") as table:
        next(table, None)
        for line in table:
            yield line.split()


def _find_socket_process(inode: int) -> frames.Message:
    for pid in list_pids():
        with contextlib.suppress(OSError):
            if holds_socket(pid, inode):
                from aboard.agent.inspect.leftover_runs import find_active_run  # noqa: PLC0415 - seldom needed

                return {
                    # The user that runs it now; the socket's own user is the one that created it.
                    "user": resolve_user(os.stat("/proc/%d/fd" % pid).st_uid),
                    "pid": pid,
                    "name": read_name(pid),
                    "run": find_active_run(pid),
                    "ours": AGENT_MARK in read_kernel_file("/proc/%d/cmdline" % pid),
                }
    return {}
