"""Which packets get to a peer and back: small ones and those as large as the card allows, as an ordinary user.

A datagram to a port at which nobody listens is answered by the peer's kernel (ICMP port unreachable), which a connected
socket hears as a refused connection. Where that is filtered, both sizes stay silent, and nothing is concluded.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from typing import Any

# The discard service, which nobody runs.
PORT = 9
SMALL = 32
# As IPv4's and UDP's own heads take.
HEADS = 28
# ip(7): never in fragments.
IP_MTU_DISCOVER, PMTUDISC_DO, IP_MTU = 10, 2, 14
TRIES = 3


def echoes(addresses: list[str], seconds: float) -> dict[str, list[Any]]:
    """By address: whether a small packet was answered, and whether a large one was; how many were sent, and lost."""
    found: dict[str, list[Any]] = {address: [False, False, 0, 0] for address in addresses}
    talks: dict[int, tuple[str, int, socket.socket, int]] = {}
    poll = select.poll()
    for address in addresses:
        for which in (0, 1):
            with contextlib.suppress(OSError):
                talk = _open(address)
                size = SMALL if which == 0 else talk.getsockopt(socket.IPPROTO_IP, IP_MTU) - HEADS
                talks[talk.fileno()] = (address, which, talk, size)
                poll.register(talk.fileno(), select.POLLIN | select.POLLERR)
    end = time.monotonic() + seconds
    for number in range(TRIES):
        for address, _which, talk, size in talks.values():
            with contextlib.suppress(OSError):
                talk.send(b"\0" * size)
                found[address][2] += 1
                found[address][3] += 1
        until = time.monotonic() + (end - time.monotonic()) / (TRIES - number)
        while talks and time.monotonic() < until:
            for fd, _events in poll.poll(max(0.0, until - time.monotonic()) * 1000):
                address, which, talk, _size = talks.pop(fd)
                poll.unregister(fd)
                found[address][which] = True
                found[address][3] -= 1
                talk.close()
    for _address, _which, talk, _size in talks.values():
        talk.close()
    return found


def _open(address: str) -> Any:
    talk = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        talk.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_DO)
        talk.connect((address, PORT))
    except OSError:
        talk.close()
        raise
    return talk
