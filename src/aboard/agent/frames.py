"""Frames: four bytes of length, then that many bytes of JSON, over any duplex byte stream."""

from __future__ import annotations

import json

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]
else:
    Message = dict

VERSION = 1
HEADER = 4
# Far above any frame that we send; a stream that announces more is noise or hostile, and is closed unread.
LIMIT = 8 * 1024 * 1024
# No JSON begins like this: four bytes of length follow, that much JSON, then raw bytes. As JSON, a file's bytes would
# take twice the space.
TAILED = b"\0"


class FrameError(ValueError):
    """The bytes are not a valid frame."""


def pack(message: Message) -> bytes:
    body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if len(body) > LIMIT:
        raise FrameError("a frame of %d bytes is over the limit of %d" % (len(body), LIMIT))
    return len(body).to_bytes(HEADER, "big") + body


def pack_tailed(message: Message, tail: bytes | memoryview) -> bytes:
    """Packs a message followed by raw bytes."""
    head = pack(message)
    size = len(TAILED) + len(head) + len(tail)
    if size > LIMIT:
        raise FrameError("a frame of %d bytes is over the limit of %d" % (size, LIMIT))
    return b"".join((size.to_bytes(HEADER, "big"), TAILED, head, tail))


def unpack_tailed(body: bytes) -> tuple[Message, memoryview]:
    start = len(TAILED) + HEADER
    end = start + int.from_bytes(body[len(TAILED) : start], "big")
    if body[: len(TAILED)] != TAILED or end > len(body):
        raise FrameError("a frame without its announced tail: %r" % body[:60])
    return unpack(body[start:end]), memoryview(body)[end:]


def unpack(body: bytes) -> Message:
    try:
        message = json.loads(body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise FrameError("a frame that is not JSON: %r" % body[:60]) from error
    if not isinstance(message, dict):
        raise FrameError("a frame that is not an object: %r" % body[:60])
    return message


class FrameSplitter:
    """Cuts a byte stream into frame bodies, never holding more than one frame's limit."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        buffer = self._buffer
        buffer += data
        bodies = []
        start = 0
        while len(buffer) - start >= HEADER:
            size = int.from_bytes(buffer[start : start + HEADER], "big")
            if size > LIMIT:
                raise FrameError("a frame of %d bytes is over the limit of %d" % (size, LIMIT))
            if len(buffer) - start - HEADER < size:
                break
            with memoryview(buffer) as view:
                bodies.append(bytes(view[start + HEADER : start + HEADER + size]))
            start += HEADER + size
        del buffer[:start]
        return bodies


def bytes_to_text(data: bytes) -> str:
    """Carries bytes through JSON one to one: a child's output may be anything."""
    return data.decode("latin-1")


def text_to_bytes(carried: str) -> bytes:
    return carried.encode("latin-1")
