"""A line of a rank's output, and the folding of equal lines from many ranks."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import NamedTuple

from aboard.lazy_dataclass import dataclass

# Ranks usually print the same line within this many seconds; a line's time is its arrival in the node's pipe.
WINDOW = 2.0
MOST_OPEN = 4096

# Ranks, times, addresses and values differ between otherwise equal lines.
_NUMBER = re.compile(rb"0[xX][0-9a-fA-F]+|[-+]?[0-9][0-9.,:_]*(?:[eE][-+]?[0-9]+)?")
# The number of a step, not its seconds: `step 40`, `"step": 40`, `Iteration=1,040`.
_STEP = re.compile(rb"(?i)(?:step|iter|iteration|epoch)\W{1,4}([0-9][0-9,]*)(?!\.?[0-9]| ?m?s\b)")


class OutputLine(NamedTuple):
    """One line, or a note that bytes are missing here. A tuple, since there are millions of them.

    `continues`: it is the rest of an earlier line; `cut`: its rest may come later. `missing` bytes were lost, and
    `why` says where: on the node, on the head's disk, or past the limits.
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
    """One line for all ranks that printed it, in the earliest rank's version; `alike` if some differ in numbers."""

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
    """The open groups of one shape: when a rank repeats a line, it starts the next group."""

    groups: list[FoldedLine] = field(default_factory=list)
    closed: int = 0
    turn: dict[int, int] = field(default_factory=dict)


def fold_lines(lines: Iterable[OutputLine], window: float = WINDOW) -> Iterator[FoldedLine]:
    """Yields folded lines in the order of their first line, forward or backward; each rank at most once in each."""
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
    """The key that lines must share to be folded: ranks that are a step apart don't share a line."""
    return line.stream, line.continues, line.why, _NUMBER.sub(b"0", line.text), *_STEP.findall(line.text)


def _close_group(shapes: dict[tuple[object, ...], _Shape], key: tuple[object, ...], folded: FoldedLine) -> FoldedLine:
    open_shape = shapes[key]
    open_shape.groups.pop(0)
    open_shape.closed += 1
    if not open_shape.groups:
        del shapes[key]
    return folded
