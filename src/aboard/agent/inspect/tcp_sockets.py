"""The TCP connections of processes, from /proc: peers, states, unsent bytes."""

from __future__ import annotations

import contextlib
import os
import socket
import struct

from aboard.agent.network.tcp_info import read_tcp_infos
from aboard.agent.procfs import read_kernel_file, read_namespace

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# As the kernel numbers them: include/net/tcp_states.h.
STATES = {
    1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2", 6: "TIME_WAIT", 7: "CLOSE",
    8: "CLOSE_WAIT", 9: "LAST_ACK", 10: "LISTEN", 11: "CLOSING",
}  # fmt: skip
TABLE_LIMIT = 8 * 1024 * 1024
# A rank of a full mesh has one to each of thousands: only the most informative are reported.
MOST = 160
MOST_FILES = 65536


class SocketTables:
    """The tables of each network namespace, read once; a rank in a container may have one of its own."""

    def __init__(self) -> None:
        self._tables: dict[int, dict[int, dict[str, Any]]] = {}
        self._own = read_namespace(os.getpid(), "net")

    def of(self, pids: Iterable[int]) -> list[dict[str, Any]]:
        """The connections of these processes, the most informative first."""
        entries: dict[int, dict[str, Any]] = {}
        for pid in pids:
            table = self._table(pid)
            for inode in _list_socket_inodes(pid):
                if inode in table:
                    entries[inode] = table[inode]
        return sorted(entries.values(), key=_sort_key)[:MOST]

    def _table(self, pid: int) -> dict[int, dict[str, Any]]:
        space = read_namespace(pid, "net")
        if space not in self._tables:
            table = _read_tables(pid)
            # The kernel reports more only for our own network namespace.
            if space == self._own:
                for inode, more in read_tcp_infos().items():
                    if inode in table:
                        table[inode].update(more)
            self._tables[space] = table
        return self._tables[space]


def _sort_key(entry: dict[str, Any]) -> tuple[int, int]:
    order = {"SYN_SENT": 0, "LISTEN": 1, "SYN_RECV": 2}
    busy = entry["tx"] + entry["rx"] + entry["resent"] * 1000000
    return order.get(entry["state"], 3), -busy


def _list_socket_inodes(pid: int) -> set[int]:
    inodes = set()
    with contextlib.suppress(OSError):
        for target in list_open_files(pid):
            if target.startswith("socket:["):
                inodes.add(int(target[8:-1]))
    return inodes


def list_open_files(pid: int) -> list[str]:
    """What the descriptors of a process refer to; raises OSError for a process of another user."""
    targets = []
    for number in os.listdir("/proc/%d/fd" % pid)[:MOST_FILES]:
        with contextlib.suppress(OSError):
            targets.append(os.readlink("/proc/%d/fd/%s" % (pid, number)))
    return targets


def _read_tables(pid: int) -> dict[int, dict[str, Any]]:
    entries = {}
    for name in ("tcp", "tcp6"):
        for line in read_kernel_file("/proc/%d/net/%s" % (pid, name), TABLE_LIMIT).split(b"\n")[1:]:
            words = line.split()
            with contextlib.suppress(ValueError, IndexError, KeyError, OSError):
                entries[int(words[9])] = _parse_entry(words)
    return entries


def _parse_entry(words: list[bytes]) -> dict[str, Any]:
    sent, _, received = words[4].partition(b":")
    return {
        "inode": int(words[9]),
        "local": _format_address(words[1]),
        "remote": _format_address(words[2]),
        "state": STATES[int(words[3], 16)],
        "tx": int(sent, 16),
        "rx": int(received, 16),
        "resent": int(words[6], 16),
    }


def _format_address(word: bytes) -> str:
    """As `10.0.0.1:29500` or `[fd00::1]:29500`: the kernel prints each 32-bit word in its own byte order."""
    raw, _, port = word.partition(b":")
    packed = b"".join(struct.pack("=I", int(raw[at : at + 8], 16)) for at in range(0, len(raw), 8))
    if len(packed) == 4:  # noqa: PLR2004 - bytes of an IPv4 address
        return "%s:%d" % (socket.inet_ntop(socket.AF_INET, packed), int(port, 16))
    if packed.startswith(b"\0" * 10 + b"\xff\xff"):
        return "%s:%d" % (socket.inet_ntop(socket.AF_INET, packed[12:]), int(port, 16))
    return "[%s]:%d" % (socket.inet_ntop(socket.AF_INET6, packed), int(port, 16))
