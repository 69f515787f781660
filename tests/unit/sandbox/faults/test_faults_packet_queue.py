"""The kernel's packet queue, in bytes as it sends them."""

import struct

import pytest

from aboard.sandbox.faults.network.packet_queue import parse_messages, parse_packet_number


def message(kind: int, body: bytes) -> bytes:
    padding = b"\0" * (-len(body) % 4)
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 0, 0) + body + padding


def packet(number: int, kind: int = 1) -> bytes:
    header = struct.pack("!IHB", number, 0x0800, 0)
    return b"\2\0\0\7" + struct.pack("=HH", 4 + len(header), kind) + header + b"\0"


def test_several_messages_in_one_read() -> None:
    """One read may hold several messages, padded to four bytes."""
    assert parse_messages(message(0x300, b"abcde") + message(2, b"\0\0\0\0")) == [(0x300, b"abcde"), (2, b"\0\0\0\0")]


def test_packet_number() -> None:
    """A packet's number is in network order, whatever the machine's order is."""
    [(_, body)] = parse_messages(message(0x300, packet(0x01020304)))
    assert parse_packet_number(body) == 0x01020304


def test_no_number() -> None:
    """A packet without its header is an error, not packet 0."""
    with pytest.raises(OSError, match="without an id"):
        parse_packet_number(packet(1, kind=9))
