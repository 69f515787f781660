"""The progress of a training run: a bar with the time left, its metrics, and the loss curve."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.shared.progress_bar import render_bar
from aboard.core.run.training_metrics import TrainingStatus
from aboard.core.text.byte_sizes import format_size
from aboard.core.text.durations import format_duration

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


CURVE_LINES = 5
BAR = 40
_THOUSAND, _MILLION = 1e3, 1e6


class TrainingProgressView:
    """At most `lines` lines; the curve is dropped first if there is little room."""

    def __init__(self, status: TrainingStatus, *, lines: int) -> None:
        self._status = status
        has_curve = len(status.curve) >= LEAST_POINTS
        self._curve = min(CURVE_LINES, lines - 2) if has_curve and lines - 2 > 1 else 0
        self.height = 2 + self._curve

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield _render_progress(self._status, options.max_width)
        yield _render_figures(self._status.metrics, options.max_width)
        if self._curve:
            yield LossCurveView(self._status.curve, lines=self._curve, until=int(self._status.metrics.get("steps", 0)))


def format_progress_line(status: TrainingStatus) -> str:
    """The same on one plain line."""
    metrics = status.metrics
    steps = f"/{metrics['steps']:.0f}" if "steps" in metrics else ""
    parts = [f"train step {status.step}{steps}", *(f"{name} {value}" for name, value in _list_figures(metrics))]
    if status.left is not None:
        parts.append(f"left {format_duration(status.left)}")
    return " · ".join(parts)


def _render_progress(status: TrainingStatus, width: int) -> Text:
    metrics = status.metrics
    steps = f" of {metrics['steps']:,.0f}" if "steps" in metrics else ""
    parts = [f"step {status.step:,}{steps}"]
    if "epoch" in metrics:
        parts.append(f"epoch {metrics['epoch']:.2f}")
    if status.left is not None and status.share != 1:
        parts.append(f"{format_duration(status.left)} left")
    text = " · ".join(parts)
    line = Text(no_wrap=True, overflow="ellipsis")
    cells = min(BAR, width - cell_len(text) - 8)
    if status.share is not None and cells >= BAR // 4:
        line.append_text(render_bar(status.share, cells)).append(f" {status.share:4.0%}  ", style="bold")
    return line.append(text)


def _render_figures(metrics: Mapping[str, float], width: int) -> Text:
    """The metrics that fit, in order."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for name, value in _list_figures(metrics):
        longer = line.cell_len + cell_len(f"   {name} {value}")
        if longer > width and line.cell_len:
            break
        line.append("   " if line.cell_len else "").append(f"{name} ", style="dim").append(value, style="bold")
    return line


def _list_figures(metrics: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    forms = {
        "loss": ("loss", "{:.4f}".format),
        "eval_loss": ("eval loss", "{:.4f}".format),
        "best_eval_loss": ("best eval loss", "{:.4f}".format),
        "learning_rate": ("lr", "{:.2e}".format),
        "grad_norm": ("grad norm", "{:.3g}".format),
        "tokens_per_second": ("tokens/s", _format_amount),
        "mfu": ("MFU", "{:.0%}".format),
        "memory": ("memory", format_size),
        "tokens": ("tokens", _format_amount),
    }
    for key, (name, format_value) in forms.items():
        if key in metrics:
            yield name, format_value(metrics[key])


def _format_amount(count: float) -> str:
    for unit, sign in ((_MILLION, "M"), (_THOUSAND, "k")):
        if count >= unit:
            return f"{count / unit:.3g} {sign}"
    return f"{count:.0f}"
