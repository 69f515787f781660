"""A line of a rank's output, and equal lines of many ranks folded into one."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import NamedTuple

from aboard.lazy_dataclass import dataclass

# Ranks that do the same do it within this, mostly: the time of a line is that of its arrival in the node's pipe.
WINDOW = 2.0
MOST_OPEN = 4096

# Ranks, times, addresses and figures differ between lines that say the same.
_NUMBER = re.compile(rb"0[xX][0-9a-fA-F]+|[-+]?[0-9][0-9.,:_]*(?:[eE][-+]?[0-9]+)?")


class OutputLine(NamedTuple):
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
class FoldedLine:
    """One line for all ranks that said it, in the words of the earliest; `alike` if some differ in numbers."""

    line: OutputLine
    ranks: list[int]
    alike: bool = False

    def join(self, line: OutputLine) -> None:
        self.alike |= line.text != self.line.text
        self.ranks.append(line.rank)
        if line.at < self.line.at:
            self.line = line


@dataclass(slots=True, kw_only=True)
class _Shape:
    """The open groups of one shape: a rank that says it again belongs to the next group."""

    groups: list[FoldedLine] = field(default_factory=list)
    closed: int = 0
    turn: dict[int, int] = field(default_factory=dict)


def fold_lines(lines: Iterable[OutputLine], window: float = WINDOW) -> Iterator[FoldedLine]:
    """Streams folded lines in the order of their first, forward or backward in time; each rank once in each."""
    shapes: dict[tuple[object, ...], _Shape] = {}
    waiting: dict[int, tuple[tuple[object, ...], FoldedLine, float]] = {}
    for line in lines:
        while waiting:
            first = next(iter(waiting))
            if abs(line.at - waiting[first][2]) <= window and len(waiting) < MOST_OPEN:
                break
            yield _close_group(shapes, *waiting.pop(first)[:2])
        key = get_line_shape(line)
        open_shape = shapes.setdefault(key, _Shape())
        turn = max(open_shape.turn.get(line.rank, 0), open_shape.closed)
        open_shape.turn[line.rank] = turn + 1
        if turn - open_shape.closed < len(open_shape.groups):
            open_shape.groups[turn - open_shape.closed].join(line)
        else:
            folded = FoldedLine(line=line, ranks=[line.rank])
            open_shape.groups.append(folded)
            waiting[id(folded)] = key, folded, line.at
    for _key, folded, _at in waiting.values():
        yield folded


def get_line_shape(line: OutputLine) -> tuple[object, ...]:
    """What lines must share to be folded."""
    return line.stream, line.continues, line.why, _NUMBER.sub(b"0", line.text)


def _close_group(shapes: dict[tuple[object, ...], _Shape], key: tuple[object, ...], folded: FoldedLine) -> FoldedLine:
    open_shape = shapes[key]
    open_shape.groups.pop(0)
    open_shape.closed += 1
    if not open_shape.groups:
        del shapes[key]
    return folded
