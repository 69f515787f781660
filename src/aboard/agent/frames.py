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
# JSON such as `[],[],[],…` takes twenty times its size in memory, so a large frame may only have so many values.
MOST_VALUES = 1_500_000
SMALL = 256 * 1024
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
    return b"".join((pack_before_tail(message, len(tail)), tail))


def pack_before_tail(message: Message, tail_size: int) -> bytes:
    """What comes before so many raw bytes: whoever writes both needn't copy the bytes."""
    head = pack(message)
    size = len(TAILED) + len(head) + tail_size
    if size > LIMIT:
        raise FrameError("a frame of %d bytes is over the limit of %d" % (size, LIMIT))
    return b"".join((size.to_bytes(HEADER, "big"), TAILED, head))


def unpack_tailed(body: bytes | memoryview) -> tuple[Message, memoryview]:
    start = len(TAILED) + HEADER
    end = start + int.from_bytes(body[len(TAILED) : start], "big")
    if body[: len(TAILED)] != TAILED or end > len(body):
        raise FrameError("a frame without its announced tail: %r" % bytes(body[:60]))
    return unpack(body[start:end]), memoryview(body)[end:]


def unpack_parts(body: bytes | memoryview) -> tuple[Message, memoryview]:
    """A frame's message and the raw bytes behind it, which only a tailed one has."""
    return unpack_tailed(body) if body[: len(TAILED)] == TAILED else (unpack(body), memoryview(b""))


def unpack_any(body: bytes) -> Message:
    """A frame; the raw bytes behind a tailed one become its `tail`, a memoryview, which no JSON can contain."""
    if body[: len(TAILED)] != TAILED:
        return unpack(body)
    message, tail = unpack_tailed(body)
    return {**message, "tail": tail}


def unpack(body: bytes | memoryview) -> Message:
    body = bytes(body)
    if len(body) > SMALL and sum(map(body.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise FrameError("a frame of more than %d values" % MOST_VALUES)
    try:
        message = json.loads(body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise FrameError("a frame that is not JSON: %r" % body[:60]) from error
    if not isinstance(message, dict):
        raise FrameError("a frame that is not an object: %r" % body[:60])
    return message


class FrameSplitter:
    """Cuts a byte stream into frame bodies, never holding more than one frame's limit."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        # The beginning of a frame, in pieces: joining them once is cheaper than a growing buffer.
        self._pieces: list[bytes] = []
        self._held = 0
        self._wanted = HEADER

    def feed(self, data: bytes) -> list[bytes]:
        if self._pieces:
            self._pieces.append(data)
            self._held += len(data)
            if self._held < self._wanted:
                return []
            data = b"".join(self._pieces)
            self._pieces.clear()
        bodies = []
        start, end = 0, len(data)
        self._wanted = HEADER
        while end - start >= HEADER:
            size = int.from_bytes(data[start : start + HEADER], "big")
            if size > self._limit:
                raise FrameError("a frame of %d bytes is over the limit of %d" % (size, self._limit))
            self._wanted = HEADER + size
            if end - start < self._wanted:
                break
            bodies.append(data[start + HEADER : start + self._wanted])
            start += self._wanted
            self._wanted = HEADER
        self._held = end - start
        if self._held:
            self._pieces.append(data[start:])
        return bodies


def bytes_to_text(data: bytes) -> str:
    """Carries bytes through JSON one to one: a child's output may be anything."""
    return data.decode("latin-1")


def text_to_bytes(carried: str) -> bytes:
    return carried.encode("latin-1")
