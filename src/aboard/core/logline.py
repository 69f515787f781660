"""A line of a rank's output, and equal lines of many ranks folded into one."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import NamedTuple

from aboard.lazy import dataclass

# Ranks that do the same do it within this, mostly: the time of a line is that of its arrival in the node's pipe.
WINDOW = 2.0
MOST_OPEN = 4096

# Ranks, times, addresses and figures differ between lines that say the same.
_NUMBER = re.compile(rb"0[xX][0-9a-fA-F]+|[-+]?[0-9][0-9.,:_]*(?:[eE][-+]?[0-9]+)?")


class Line(NamedTuple):
    """One line, or a note that bytes are missing here. A tuple, since there are millions of them.

    `continues` says that it is the rest of a line whose beginning came before, `cut` that its rest may come later;
    `missing` bytes were lost, and `why` says where: on the node, on the disk here, or past the limits.
    """

    at: float
    rank: int
    node: str
    stream: str
    text: bytes
    continues: bool = False
    cut: bool = False
    missing: int = 0
    why: str = ""


@dataclass(slots=True, kw_only=True)
class Told:
    """One line for all ranks that said it, in the words of the earliest; `alike` if some differ in numbers."""

    line: Line
    ranks: list[int]
    alike: bool = False

    def join(self, line: Line) -> None:
        self.alike |= line.text != self.line.text
        self.ranks.append(line.rank)
        if line.at < self.line.at:
            self.line = line


@dataclass(slots=True, kw_only=True)
class _Shape:
    """The open groups of one shape: a rank that says it again belongs to the next group."""

    groups: list[Told] = field(default_factory=list)
    closed: int = 0
    turn: dict[int, int] = field(default_factory=dict)


def fold(lines: Iterable[Line], window: float = WINDOW) -> Iterator[Told]:
    """Streams folded lines in the order of their first, forward or backward in time; each rank once in each."""
    shapes: dict[tuple[object, ...], _Shape] = {}
    waiting: dict[int, tuple[tuple[object, ...], Told, float]] = {}
    for line in lines:
        while waiting:
            first = next(iter(waiting))
            if abs(line.at - waiting[first][2]) <= window and len(waiting) < MOST_OPEN:
                break
            yield _closed(shapes, *waiting.pop(first)[:2])
        key = shape(line)
        known = shapes.setdefault(key, _Shape())
        turn = max(known.turn.get(line.rank, 0), known.closed)
        known.turn[line.rank] = turn + 1
        if turn - known.closed < len(known.groups):
            known.groups[turn - known.closed].join(line)
        else:
            told = Told(line=line, ranks=[line.rank])
            known.groups.append(told)
            waiting[id(told)] = key, told, line.at
    for _key, told, _at in waiting.values():
        yield told


def shape(line: Line) -> tuple[object, ...]:
    """What lines must share to be folded."""
    return line.stream, line.continues, line.why, _NUMBER.sub(b"0", line.text)


def _closed(shapes: dict[tuple[object, ...], _Shape], key: tuple[object, ...], told: Told) -> Told:
    known = shapes[key]
    known.groups.pop(0)
    known.closed += 1
    if not known.groups:
        del shapes[key]
    return told
