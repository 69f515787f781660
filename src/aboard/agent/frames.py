"""Frames: four bytes of length, then that many bytes of JSON, over any duplex byte stream.

This is also where the agent decodes everything from outside. NaN, infinities and huge numbers are refused where a field
is a number, an int of more than 4,300 digits by Python itself; of an object's equal keys, the last one counts.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    T = TypeVar("T")
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
# Far above what we send, and far below what Python's recursion limit lets us encode, copy or walk through.
MOST_DEPTH = 64
# Exact in every program that reads JSON.
MOST = 2**53
ALIKE = bytes.maketrans(b"{}", b"[]")
NOT_BRACKETS = bytes(set(range(256)).difference(b"[]{}"))
# No JSON begins like this: four bytes of length follow, that much JSON, then raw bytes. As JSON, a file's bytes would
# take twice the space.
TAILED = b"\0"


class FrameError(ValueError):
    """The bytes are not a valid frame, or not what was declared."""


class Signed(int):
    """The kind of a field that may be negative."""


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
    message = decode_json(body)
    if not isinstance(message, dict):
        raise FrameError("a frame that is not an object: %r" % bytes(body[:60]))
    return message


def decode_json(data: bytes | memoryview) -> Any:
    """Decodes JSON of limited size and depth and with a limited number of values, or raises FrameError."""
    return decode_with(_parse_json, bytes(data), "not JSON")


def decode_fields(value: Any, kinds: Mapping[str, Any]) -> Message:
    """These fields of an object: a kind is a type, [kind] a list, (kind, kind) a row, {str: kind} a mapping."""
    found: Message = {}
    for name, kind in kinds.items():
        try:
            found[name] = _check(value[name], kind)
        except Exception as error:
            why = error if isinstance(error, FrameError) else type(error).__name__
            raise FrameError("no valid %s: %s" % (name, why)) from error
    return found


def decode_with(parse: Callable[[Any], T], value: Any, problem: str) -> T:
    """What `parse` makes of a foreign value; whatever it raises becomes a FrameError with this problem."""
    try:
        return parse(value)
    except FrameError:
        raise
    except Exception as error:
        # No list of types is complete: ValueError, UnicodeError, KeyError and TypeError of wrong content, OverflowError
        # of numbers, RecursionError of depth, MemoryError of size; a missed one would end the supervisor of all ranks.
        seen = ": %r" % value[:60] if isinstance(value, bytes) else ""
        raise FrameError("%s (%s)%s" % (problem, type(error).__name__, seen)) from error


def _parse_json(data: bytes) -> Any:
    if len(data) > LIMIT:
        raise FrameError("%d bytes, more than %d" % (len(data), LIMIT))
    if len(data) > SMALL and sum(map(data.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise FrameError("a frame of more than %d values" % MOST_VALUES)
    value = json.loads(data.decode("utf-8", "surrogatepass"))
    if _is_deep(data):
        raise FrameError("nested more than %d deep" % MOST_DEPTH)
    return value


def _is_deep(data: bytes) -> bool:
    """Removes innermost brackets of valid JSON until none are left: ten times as fast as a walk."""
    if data.count(b"[") + data.count(b"{") <= MOST_DEPTH:
        return False
    # Those in texts don't count, and could hide others: texts are every second part between quotes.
    parts = data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    brackets = b"".join(parts[::2]).translate(ALIKE, NOT_BRACKETS)
    for _ in range(MOST_DEPTH):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            break
    return bool(brackets)


def _check(value: Any, kind: Any) -> Any:
    if isinstance(kind, list):
        return [_check(each, kind[0]) for each in _check(value, list)]
    if isinstance(kind, dict):
        return {name: _check(each, kind[str]) for name, each in _check(value, dict).items()}
    if isinstance(kind, tuple):
        if len(_check(value, list)) != len(kind):
            raise FrameError("expected a row of %d" % len(kind))
        return [_check(each, part) for each, part in zip(value, kind)]
    # In Python, True is an int. No comparison holds for NaN.
    fits = type(value) in {float: (int, float), Signed: (int,)}.get(kind, (kind,))
    if not fits or (type(value) in (int, float) and not (0 if kind is int else -MOST) <= value < MOST):
        raise FrameError("expected %s, got %s" % (kind.__name__, type(value).__name__))
    return value


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
