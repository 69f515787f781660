"""A histogram of row lengths."""

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.data.length_statistics import HistogramBar

# Eighths of a cell.
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")
_FULL = "█"
# Longer bars show no more.
WIDEST = 60


class HistogramView:
    """As wide as the terminal allows; a line marks the limit, and bars past it have another colour."""

    def __init__(self, bars: Sequence[HistogramBar], unit: str, *, limit: int | None = None) -> None:
        self._bars = bars
        self._unit = unit
        self._limit = limit

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._bars:
            return
        most = max(bar.rows for bar in self._bars)
        ranges = [f"{bar.low:,}–{bar.high:,}" if bar.low < bar.high else f"{bar.low:,}" for bar in self._bars]
        ends = max(len(self._unit), *map(len, ranges))
        counts = max(len("rows"), len(f"{most:,}"))
        width = max(8, min(WIDEST, options.max_width - ends - counts - 8))
        yield Text(f"  {self._unit:>{ends}}  {'rows':>{counts}}", style="dim")
        marked = False
        for bar, label in zip(self._bars, ranges, strict=True):
            past = self._limit is not None and bar.low > self._limit
            if self._limit is not None and not marked and bar.high > self._limit:
                yield Text(f"  {'─' * (ends + counts + 2)}  max_length {self._limit:,}", style="dim")
                marked = True
            line = Text.assemble(
                f"  {label:>{ends}}  {bar.rows:>{counts},}  ",
                (_draw_bar(bar.rows / most, width), "yellow" if past else "cyan"),
                no_wrap=True,
                overflow="ignore",
            )
            line.rstrip()
            yield line


def _draw_bar(share: float, width: int) -> str:
    """A bar in eighths of a cell; at least one eighth if there is anything to show."""
    eighths = round(share * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    whole, rest = divmod(eighths, 8)
    return _FULL * whole + _EIGHTHS[rest]
