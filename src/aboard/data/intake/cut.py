"""Cutting a file of lines into byte ranges, each with the number of its first line."""

from pathlib import Path
from typing import NamedTuple

_BLOCK = 4 << 20


class Cut(NamedTuple):
    """Whole lines: from byte `start` up to `stop`, the first of them line number `line`."""

    start: int
    stop: int
    line: int


def cut(path: str, *, every: int) -> list[Cut]:
    """Ranges of about `every` bytes; a line belongs to the range in which it starts, however long it is.

    One pass that counts newlines, in bounded memory: under a second a GB from the page cache, hundreds of times
    faster than the same bytes are tokenized. A file of a single range is not read at all.
    """
    size = Path(path).stat().st_size
    starts = [(0, 1)] if size <= every else _starts(path, size, every)
    stops = [start for start, _ in starts[1:]] + [size]
    return [Cut(start, stop, line) for (start, line), stop in zip(starts, stops, strict=True)]


def _starts(path: str, size: int, every: int) -> list[tuple[int, int]]:
    starts = [(0, 1)]
    offset, line = 0, 1
    target = every
    with Path(path).open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            at = 0
            while target - offset <= len(block):
                newline = block.find(b"\n", max(target - offset - 1, at))
                if newline < 0:
                    break
                line += block.count(b"\n", at, newline + 1)
                at = newline + 1
                if offset + at < size:
                    starts.append((offset + at, line))
                target = offset + at + every
            line += block.count(b"\n", at)
            offset += len(block)
    return starts
