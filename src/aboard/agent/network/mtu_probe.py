"""Probes the path MTU as an ordinary user: whether small and MTU-sized packets reach a peer and get a response.

A datagram to a closed port makes the peer's kernel reply (ICMP port unreachable), which a connected socket sees as a
refused connection. Where that is filtered, neither size gets a reply, and the probe concludes nothing.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from typing import Any

# The discard service, which is normally not running.
PORT = 9
SMALL = 32
# IPv4 and UDP headers.
HEADER_BYTES = 28
# ip(7): never in fragments.
IP_MTU_DISCOVER, PMTUDISC_DO, IP_MTU = 10, 2, 14
TRIES = 3


def probe_packet_sizes(addresses: list[str], seconds: float) -> dict[str, list[Any]]:
    """By address: whether a small and a large packet got a response, and how many were sent and lost."""
    results: dict[str, list[Any]] = {address: [False, False, 0, 0] for address in addresses}
    probes: dict[int, tuple[str, int, socket.socket, int]] = {}
    poll = select.poll()
    for address in addresses:
        for size_index in (0, 1):
            with contextlib.suppress(OSError):
                probe = _open_probe_socket(address)
                size = SMALL if size_index == 0 else probe.getsockopt(socket.IPPROTO_IP, IP_MTU) - HEADER_BYTES
                probes[probe.fileno()] = (address, size_index, probe, size)
                poll.register(probe.fileno(), select.POLLIN | select.POLLERR)
    end = time.monotonic() + seconds
    for number in range(TRIES):
        for address, _which, probe, size in probes.values():
            with contextlib.suppress(OSError):
                probe.send(b"\0" * size)
                results[address][2] += 1
                results[address][3] += 1
        until = time.monotonic() + (end - time.monotonic()) / (TRIES - number)
        while probes and time.monotonic() < until:
            for fd, _events in poll.poll(max(0.0, until - time.monotonic()) * 1000):
                address, size_index, probe, _size = probes.pop(fd)
                poll.unregister(fd)
                results[address][size_index] = True
                results[address][3] -= 1
                probe.close()
    for _address, _which, probe, _size in probes.values():
        probe.close()
    return results


def _open_probe_socket(address: str) -> Any:
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        probe.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_DO)
        probe.connect((address, PORT))
    except OSError:
        probe.close()
        raise
    return probe
