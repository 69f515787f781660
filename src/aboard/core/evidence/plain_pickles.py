"""Reads pickles of plain values without running anything: torch's flight recorder writes such dumps.

Only the instructions that torch uses for numbers, texts, lists, tuples and dicts are known; any other is refused, above
all those that name a function. The standard module would call it, and takes a gigabyte for one index of nine bytes.
"""

from collections.abc import Callable
from struct import unpack
from typing import Any

from aboard.core.decoding import DecodeError, decode_with

# A dump of 2,000 collectives with their stacks has some 5 MB and half a million instructions.
MOST_BYTES = 32 * 2**20
_MOST_INSTRUCTIONS = 4_000_000
_MOST_CONTAINERS = 1_000_000
_MOST_INT_BYTES = 8


def parse_plain_pickle(data: bytes) -> Any:
    """The value, with lists in place of tuples, as JSON has them; raises a DecodeError for anything else."""
    return decode_with(lambda raw: _PickleReader(raw).read(), data)


class _PickleReader:
    """Runs the instructions over a stack, as a pickle is meant to be read."""

    def __init__(self, data: bytes) -> None:
        if len(data) > MOST_BYTES:
            raise DecodeError("too long")
        self._data, self._at = data, 0
        self._stack: list[Any] = []
        self._marked: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._count = self._containers = 0

    def read(self) -> Any:
        while self._at < len(self._data):
            code = self._data[self._at]
            self._at += 1
            self._count += 1
            if code == _STOP:
                return self._stack.pop()
            run = _INSTRUCTIONS.get(code)
            if run is None or self._count > _MOST_INSTRUCTIONS:
                seen = "is none of a dump's" if run is None else "is one too many"
                raise DecodeError(f"the instruction {code:#04x} at byte {self._at - 1} {seen}")
            run(self)
        raise DecodeError("cut off")

    def take(self, size: int) -> bytes:
        """The next bytes; a length that the file doesn't have is refused before anything is allocated."""
        end = self._at + size
        if not 0 <= size <= len(self._data) - self._at:
            raise DecodeError("cut off")
        taken, self._at = self._data[self._at : end], end
        return taken

    def number(self, form: str, size: int) -> int:
        return int(unpack(form, self.take(size))[0])

    def check_protocol(self) -> None:
        if self.number("B", 1) != _PROTOCOL:
            raise DecodeError("another protocol than torch's")

    def push(self, value: Any) -> None:
        if isinstance(value, list | dict):
            self.count_container()
        self._stack.append(value)

    def count_container(self) -> None:
        self._containers += 1
        if self._containers > _MOST_CONTAINERS:
            raise DecodeError("too many lists")

    def push_long(self) -> None:
        size = self.number("B", 1)
        if size > _MOST_INT_BYTES:
            raise DecodeError("a number of more than 64 bits")
        self.push(int.from_bytes(self.take(size), "little", signed=True))

    def mark(self) -> None:
        self.count_container()
        self._marked.append(self._stack)
        self._stack = []

    def since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._marked.pop()
        return items

    def gather(self, count: int) -> None:
        items = self._stack[-count:]
        if len(items) < count:
            raise DecodeError("too few values")
        del self._stack[-count:]
        self.push(items)

    def append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise DecodeError("no list to append to")
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target, keys = self._stack[-1], items[::2]
        # Hashing a deep key would need as much of C's stack.
        if type(target) is not dict or len(items) % 2 or not all(type(key) in (str, int) for key in keys):
            raise DecodeError("no dict to add to, or a key that is neither text nor number")
        target.update(zip(keys, items[1::2], strict=True))

    def put(self, index: int) -> None:
        if index > self._count:
            raise DecodeError("an index beyond the instructions that were read")
        self._memo[index] = self._stack[-1]

    def get(self, index: int) -> None:
        self._stack.append(self._memo[index])


_PROTOCOL, _STOP = 2, ord(".")
_Instruction = Callable[[_PickleReader], None]
_INSTRUCTIONS: dict[int, _Instruction] = {
    0x80: _PickleReader.check_protocol,
    ord("("): _PickleReader.mark,
    ord("N"): lambda reader: reader.push(None),
    0x88: lambda reader: reader.push(value=True),
    0x89: lambda reader: reader.push(value=False),
    ord("J"): lambda reader: reader.push(reader.number("<i", 4)),
    ord("K"): lambda reader: reader.push(reader.number("B", 1)),
    ord("M"): lambda reader: reader.push(reader.number("<H", 2)),
    0x8A: _PickleReader.push_long,
    ord("G"): lambda reader: reader.push(unpack(">d", reader.take(8))[0]),
    ord("X"): lambda reader: reader.push(reader.take(reader.number("<I", 4)).decode("utf-8", "replace")),
    ord("}"): lambda reader: reader.push({}),
    ord("]"): lambda reader: reader.push([]),
    ord(")"): lambda reader: reader.push([]),
    0x85: lambda reader: reader.gather(1),
    0x86: lambda reader: reader.gather(2),
    0x87: lambda reader: reader.gather(3),
    ord("t"): lambda reader: reader.push(reader.since_mark()),
    ord("e"): lambda reader: reader.append(reader.since_mark()),
    ord("u"): lambda reader: reader.set_items(reader.since_mark()),
    ord("q"): lambda reader: reader.put(reader.number("B", 1)),
    ord("r"): lambda reader: reader.put(reader.number("<I", 4)),
    ord("h"): lambda reader: reader.get(reader.number("B", 1)),
    ord("j"): lambda reader: reader.get(reader.number("<I", 4)),
}
