"""This host's addresses by interface."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

# rtnetlink(7): a dump of all addresses, answered by messages of a header, an ifaddrmsg and attributes.
GET_ADDRESS, NEW_ADDRESS, DONE, FAILED = 22, 20, 3, 2
REQUEST_DUMP = 0x301
ADDRESS, LOCAL = 1, 2


def list_addresses() -> list[tuple[str, str, int]]:
    """Each address as (interface, address, prefix length); /proc does not map addresses to interfaces."""
    addresses: list[tuple[str, str, int]] = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.settimeout(1.0)
        kernel.send(struct.pack("=IHHIIBBBBI", 24, GET_ADDRESS, REQUEST_DUMP, 1, 0, 0, 0, 0, 0, 0))
        while True:
            data = kernel.recv(65536)
            while data:
                size, kind = struct.unpack_from("=IH", data)
                if kind in (DONE, FAILED):
                    return addresses
                if kind == NEW_ADDRESS:
                    addresses.extend(_parse_address(data[16:size]))
                data = data[(size + 3) & ~3 :]
    return addresses


def _parse_address(message: bytes) -> Iterator[tuple[str, str, int]]:
    family, prefix, _flags, _scope, index = struct.unpack_from("=BBBBI", message)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return
    attributes: dict[int, bytes] = {}
    rest = message[8:]
    while len(rest) >= 4:  # noqa: PLR2004 - an attribute's header
        size, kind = struct.unpack_from("=HH", rest)
        attributes[kind] = rest[4:size]
        rest = rest[max(4, (size + 3) & ~3) :]
    # On a point-to-point link the other one is the peer's.
    raw = attributes.get(LOCAL) or attributes.get(ADDRESS)
    if raw:
        with contextlib.suppress(OSError):
            yield socket.if_indextoname(index), socket.inet_ntop(family, raw), prefix
