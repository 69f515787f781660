"""A progress bar, and transient lines that show one."""

from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from aboard.commands.shared.number_format import format_count
from aboard.core.text.byte_sizes import format_size

FULL = "━"
# Cells of the bar of a reading, and of the words beside it with and without rows.
_WIDE, _WORDS, _WORDS_WITH_ROWS = 40, 40, 56


def render_bar(share: float, width: int) -> Text:
    """`width` cells; full only at 100 %, and at least one cell once anything is done."""
    filled = min(width, max(0, int(share * width)))
    if share > 0 and width > 1:
        filled = max(1, filled)
    # A different character for the rest: the bar must be readable without colours.
    return Text.assemble((FULL * filled, "green"), ("─" * (width - filled), "dim"), no_wrap=True)


class TransientView:
    """A view that is on the screen while its block runs, and leaves nothing behind; subclasses render it."""

    def __init__(self, console: Console) -> None:
        self._live = Live(self, console=console, transient=True, refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        raise NotImplementedError


class ReadingView(TransientView):
    """A bar by bytes, and the rows if they are counted; none for a pipe, whose length is unknown."""

    def __init__(self, console: Console, *, opening: str = "") -> None:
        super().__init__(console)
        self._opening = opening
        self._done = self._total = 0
        self._rows: int | None = None

    def update(self, done: int, total: int, rows: int | None = None) -> None:
        self._done, self._total, self._rows = done, total, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text("reading  ", no_wrap=True, overflow="ellipsis")
        if self._total:
            words = _WORDS if self._rows is None else _WORDS_WITH_ROWS
            rows = "" if self._rows is None else f"{format_count(self._rows, 'row')}, "
            line.append(render_bar(self._done / self._total, min(_WIDE, max(1, options.max_width - words))))
            line.append(f"  {rows}{format_size(self._done)} of {format_size(self._total)}", style="dim")
        elif self._opening:
            line = Text(self._opening, style="dim")
        yield line
