"""Measures bandwidth by sending to a peer at full speed. Runs in a child, which may block."""

from __future__ import annotations

import socket
import struct
import time

from aboard.agent import frames
from aboard.agent.network.peer_listener import CHUNK, COUNT_BYTES, SINK

# Where struct tcp_info has them (linux/tcp.h); an old kernel sends less of it.
RTT, RETRANSMITS, ACKED, SEGMENTS = 68, 100, 120, 136
INFO_BYTES = 256


def measure_bandwidth(message: frames.Message) -> frames.Message:
    """Sends for `seconds`; returns bytes received by the peer, elapsed time and retransmits."""
    host, port = message["target"]
    seconds = float(message["seconds"])
    # Shorter than the child's timeout, so that a partial measurement is still reported.
    patience = float(message["timeout"]) / 3
    chunk = bytes(CHUNK)
    count_reply = b""
    with socket.create_connection((str(host), int(port)), timeout=patience) as link:
        # A small buffer, so that a slow link does not drain for long after the time is over.
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CHUNK)
        link.sendall(str(message.get("token", "")).encode() + SINK)
        began = time.monotonic()
        try:
            while time.monotonic() - began < seconds:
                link.send(chunk)
            link.shutdown(socket.SHUT_WR)
            count_reply = link.recv(COUNT_BYTES)
        except OSError:
            pass
        elapsed = time.monotonic() - began
        info = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
    return {
        "bytes": int.from_bytes(count_reply, "big") if count_reply else _read_counter(info, ACKED, "=Q"),
        "seconds": elapsed,
        "segments": _read_counter(info, SEGMENTS, "=I"),
        "retransmits": _read_counter(info, RETRANSMITS, "=I"),
        "rtt": _read_counter(info, RTT, "=I") / 1e6,
    }


def _read_counter(info: bytes, offset: int, kind: str) -> int:
    return int(struct.unpack_from(kind, info, offset)[0]) if len(info) >= offset + struct.calcsize(kind) else 0
