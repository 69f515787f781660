"""A small loss curve in braille dots, two by four per cell."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

# Unicode's braille patterns: the bit of each dot, by column and row of a cell.
_EMPTY = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_ACROSS, _DOWN = 2, 4
# A wider curve shows no more.
WIDEST = 72
LEAST_POINTS = 2

Point = tuple[int, float]


class LossCurveView:
    """`lines` high, with the highest and lowest loss as labels; the width stands for all steps `until` the last."""

    def __init__(self, points: Sequence[Point], *, lines: int, until: int = 0) -> None:
        self._points = points
        self._lines = lines
        self._until = until

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if len(self._points) < LEAST_POINTS or self._lines < 1 or options.ascii_only:
            return
        low, high = min(loss for _, loss in self._points), max(loss for _, loss in self._points)
        labels = [f"{high:.3g}", *[""] * (self._lines - 2), f"{low:.3g}"][: self._lines]
        room = max(map(len, labels))
        width = min(WIDEST, options.max_width - room - 2)
        if width < 1:
            return
        for label, row in zip(labels, draw_curve(self._points, width, self._lines, self._until), strict=True):
            yield Text.assemble((f"{label:>{room}} ", "dim"), (row, "cyan"), no_wrap=True, overflow="crop")


def draw_curve(points: Sequence[Point], width: int, lines: int, until: int = 0) -> list[str]:
    """The points as rows of cells, joined by a line."""
    first, last = points[0][0], max(until, points[-1][0])
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    across, down = width * _ACROSS, lines * _DOWN
    cells = [[_EMPTY] * width for _ in range(lines)]
    before: int | None = None
    for x, loss in _interpolate_columns(points, across, first, last):
        y = down - 1 if high == low else round((high - loss) / (high - low) * (down - 1))
        # Fill steep segments, so that the curve has no gaps.
        start = y if before is None else before + (y > before) - (y < before)
        for dot in range(min(start, y), max(start, y) + 1):
            cells[dot // _DOWN][x // _ACROSS] |= _DOTS[x % _ACROSS][dot % _DOWN]
        before = y
    return ["".join(map(chr, row)) for row in cells]


def _interpolate_columns(points: Sequence[Point], across: int, first: int, last: int) -> Iterator[tuple[int, float]]:
    """The value of every column of dots: the mean of its points, or interpolated between its neighbours."""
    sums: dict[int, list[float]] = {}
    for step, loss in points:
        x = 0 if last == first else (step - first) * (across - 1) // (last - first)
        sums.setdefault(x, []).append(loss)
    known = sorted((x, sum(losses) / len(losses)) for x, losses in sums.items())
    yield known[0]
    for (left, one), (right, two) in pairwise(known):
        for x in range(left + 1, right + 1):
            yield x, one + (two - one) * (x - left) / (right - left)
