"""Frames between copiers, each with a MAC and a number: nobody between two nodes can make, change or repeat one."""

from __future__ import annotations

import hmac

from aboard.agent import frames

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from aboard.agent.transfer.peer_handshake import PeerKeys

SEAL_BYTES = 32


class SealError(frames.FrameError):
    """The frame is not the next one of the node that has the key."""


class SealedFrames:
    """One end of a connection. With `hashed`, the bytes behind a message are left out: their SHA-256 is known."""

    def __init__(self, keys: PeerKeys) -> None:
        self._keys = keys
        self._sent = self._received = 0

    def pack(self, message: frames.Message, tail: bytes = b"", *, hashed: bool = False) -> bytes:
        head = frames.pack_before_tail(message, len(tail) + SEAL_BYTES)
        seal = self._make_seal(self._keys[0], self._sent, head, b"" if hashed else tail)
        self._sent += 1
        return b"".join((head, tail, seal))

    def unpack(self, body: memoryview, *, hashed: bool = False) -> tuple[frames.Message, memoryview]:
        size, seal = len(body).to_bytes(frames.HEADER, "big"), body[-SEAL_BYTES:]
        start = len(frames.TAILED) + frames.HEADER
        end = start + int.from_bytes(body[len(frames.TAILED) : start], "big") if hashed else len(body)
        end = min(end, len(body) - SEAL_BYTES)
        expected = self._make_seal(self._keys[1], self._received, size, body[: max(0, end)])
        if not hmac.compare_digest(expected, seal):
            raise SealError("its answer has no valid seal: somebody between the two nodes has changed or made it")
        self._received += 1
        return frames.unpack_tailed(body[:-SEAL_BYTES])

    def _make_seal(self, key: bytes, number: int, *parts: bytes | memoryview) -> bytes:
        seal = hmac.new(key, number.to_bytes(8, "big"), "sha256")
        for part in parts:
            seal.update(part)
        return seal.digest()
