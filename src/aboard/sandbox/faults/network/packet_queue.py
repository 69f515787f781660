"""Delays packets with the kernel's packet queue (NFQUEUE) over netlink.

Many kernels lack `tc netem` but have NFQUEUE. Only packet ids are copied to us, not their contents, and one verdict
releases all packets up to an id: plain Python sustains gigabits that way. The messages are those of
linux/netfilter/nfnetlink_queue.h.
"""

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import NoReturn

_NETLINK_NETFILTER = 12
_SOL_NETLINK, _NETLINK_NO_ENOBUFS = 270, 5
_SO_RCVBUFFORCE = 33
_REQUEST, _ACK = 0x1, 0x4
_ERROR = 0x2
_QUEUE_SUBSYSTEM = 3 << 8
_PACKET, _CONFIG, _VERDICT_BATCH = (_QUEUE_SUBSYSTEM | number for number in (0, 2, 3))
_CFG_COMMAND, _CFG_PARAMS, _CFG_MAXIMUM, _CFG_MASK, _CFG_FLAGS = 1, 2, 3, 4, 5
_BIND, _NUMBERS_ONLY, _BUNDLES_STAY = 1, 1, 4
_VERDICT_HEADER, _PACKET_HEADER = 2, 1
_ACCEPT = 1
_MOST_WAITING = 200_000
_BUFFER = 32 * 1024 * 1024


def delay_packets(ready: Callable[[str], None], *, queue: int, seconds: float) -> NoReturn:
    """Releases each packet of a queue after a delay."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as link:
        link.bind((0, 0))
        link.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        link.setsockopt(_SOL_NETLINK, _NETLINK_NO_ENOBUFS, 1)
        _configure_queue(link, queue, _encode_attribute(_CFG_COMMAND, struct.pack("!BxH", _BIND, 0)))
        _configure_queue(link, queue, _encode_attribute(_CFG_PARAMS, struct.pack("!IB", 0, _NUMBERS_ONLY)))
        _configure_queue(link, queue, _encode_attribute(_CFG_MAXIMUM, struct.pack("!I", _MOST_WAITING)))
        flags = struct.pack("!I", _BUNDLES_STAY)
        _configure_queue(link, queue, _encode_attribute(_CFG_FLAGS, flags) + _encode_attribute(_CFG_MASK, flags))
        link.setblocking(False)  # noqa: FBT003 - setblocking takes nothing else
        ready("")
        _serve_queue(link, queue, seconds)


def _serve_queue(link: socket.socket, queue: int, seconds: float) -> NoReturn:
    waiting: deque[tuple[float, int]] = deque()
    while True:
        now = time.monotonic()
        last = None
        while waiting and waiting[0][0] <= now:
            last = waiting.popleft()[1]
        if last is not None:
            verdict = _encode_attribute(_VERDICT_HEADER, struct.pack("!II", _ACCEPT, last))
            link.send(_encode_message(_VERDICT_BATCH, _REQUEST, queue, verdict))
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        if select.select([link], [], [], pause)[0]:
            number = _read_newest_number(link)
            if number is not None:
                waiting.append((time.monotonic() + seconds, number))


def _read_newest_number(link: socket.socket) -> int | None:
    """The id of the newest packet that has arrived; a verdict on it covers all earlier ones."""
    number = None
    # Bounded, so that a flood cannot hold back packets that are due.
    for _ in range(64):
        try:
            data = link.recv(65536)
        except BlockingIOError:
            break
        for kind, body in parse_messages(data):
            if kind == _PACKET:
                number = parse_packet_number(body)
    return number


def _configure_queue(link: socket.socket, queue: int, attributes: bytes) -> None:
    link.send(_encode_message(_CONFIG, _REQUEST | _ACK, queue, attributes))
    for kind, body in parse_messages(link.recv(65536)):
        number = struct.unpack_from("=i", body)[0] if kind == _ERROR else 0
        if number:
            raise OSError(-number, f"the kernel's packet queue refused (error {-number})")


def parse_messages(data: bytes) -> list[tuple[int, bytes]]:
    """Kind and body of each netlink message in the data."""
    found = []
    while len(data) >= 16:  # noqa: PLR2004 - the size of a netlink header
        length, kind = struct.unpack_from("=IH", data)
        found.append((kind, data[16:length]))
        data = data[(length + 3) & ~3 :]
    return found


def parse_packet_number(body: bytes) -> int:
    """The kernel's id of a packet: the first 32 bits of its first attribute, the packet header."""
    length, kind = struct.unpack_from("=HH", body, 4)
    if kind & 0x7FFF != _PACKET_HEADER or length < 8:  # noqa: PLR2004 - the size of a netlink header
        raise OSError(0, "received a packet without an id")
    number: int = struct.unpack_from("!I", body, 8)[0]
    return number


def _encode_message(kind: int, flags: int, queue: int, attributes: bytes) -> bytes:
    body = struct.pack("!BBH", socket.AF_UNSPEC, 0, queue) + attributes
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 0, 0) + body


def _encode_attribute(kind: int, value: bytes) -> bytes:
    padding = b"\0" * (-len(value) % 4)
    return struct.pack("=HH", 4 + len(value), kind) + value + padding
