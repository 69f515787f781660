"""How far the reading of the files is, on one line that goes away."""

from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from aboard.core.size import size
from aboard.ui.bars import bar
from aboard.ui.figures import many

_WIDE, _WORDS = 40, 56


class Reading:
    """A bar by bytes, and the rows so far."""

    def __init__(self, console: Console) -> None:
        self._live = Live(self, console=console, transient=True, refresh_per_second=8)
        self._done = self._total = self._rows = 0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def update(self, done: int, total: int, rows: int) -> None:
        self._done, self._total, self._rows = done, total, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._total:
            yield Text("looking at the files and the tokenizer …", style="dim")
            return
        share = self._done / self._total
        line = Text("reading  ", no_wrap=True, overflow="ellipsis")
        line.append(bar(share, min(_WIDE, max(1, options.max_width - _WORDS))))
        line.append(f"  {many(self._rows, 'row')}, {size(self._done)} of {size(self._total)}", style="dim")
        yield line
