"""The kernel's figures for each TCP connection: round trips, losses, rate; over netlink, like `ss -ti`."""

from __future__ import annotations

import contextlib
import socket
import struct

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from typing import Any

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
REQUEST_DUMP = 0x301
DONE, ERROR = 3, 2
ESTABLISHED = 1 << 1
INFO = 2
HEADER = struct.Struct("=IHHII")
# inet_diag_req_v2: family, protocol, extensions, nothing, states, and an unspecified socket.
REQUEST = struct.Struct("=BBBBI48x")
# inet_diag_msg up to its inode, its last field: sock_diag(7).
MESSAGE = 72
INODE = 68
# In tcp_info (linux/tcp.h); new fields are only ever appended.
RTT, MIN_RTT, RESENT, SEGMENTS, RATE, LAST_ACK = 68, 148, 100, 156, 160, 56
LEAST = 168
SECONDS = 0.5


def read_tcp_infos() -> dict[int, dict[str, Any]]:
    """By inode, for established connections; empty where the kernel does not report them."""
    infos_by_inode: dict[int, dict[str, Any]] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, struct.error):
            _query_family(int(family), infos_by_inode)
    return infos_by_inode


def _query_family(family: int, infos_by_inode: dict[int, dict[str, Any]]) -> None:
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)
    try:
        netlink.settimeout(SECONDS)
        body = REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (INFO - 1), 0, ESTABLISHED)
        netlink.send(HEADER.pack(HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0) + body)
        while True:
            data = netlink.recv(1 << 18)
            at = 0
            while at + HEADER.size <= len(data):
                size, kind = struct.unpack_from("=IH", data, at)
                if kind in (DONE, ERROR) or size < HEADER.size:
                    return
                _parse_message(data[at + HEADER.size : at + size], infos_by_inode)
                at += (size + 3) & ~3
    finally:
        netlink.close()


def _parse_message(message: bytes, infos_by_inode: dict[int, dict[str, Any]]) -> None:
    (inode,) = struct.unpack_from("=I", message, INODE)
    at = MESSAGE
    while at + 4 <= len(message):
        size, kind = struct.unpack_from("=HH", message, at)
        if size < 4:  # noqa: PLR2004 - an attribute's own head
            return
        info = message[at + 4 : at + size]
        if kind == INFO and len(info) >= LEAST:
            infos_by_inode[inode] = {
                "rtt": struct.unpack_from("=I", info, RTT)[0] / 1e6,
                "least_rtt": struct.unpack_from("=I", info, MIN_RTT)[0] / 1e6,
                "losses": struct.unpack_from("=I", info, RESENT)[0],
                "segments": struct.unpack_from("=I", info, SEGMENTS)[0],
                "rate": struct.unpack_from("=Q", info, RATE)[0],
                "silent": struct.unpack_from("=I", info, LAST_ACK)[0] / 1e3,
            }
            return
        at += (size + 3) & ~3
