"""The progress of reading data files, on one transient line."""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.core.text.byte_sizes import format_size
from aboard.ui.number_format import format_count
from aboard.ui.progress_bar import TransientView, render_bar

_WIDE, _WORDS = 40, 56


class DataReadingView(TransientView):
    """A bar by bytes, and the rows so far."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._done = self._total = self._rows = 0

    def update(self, done: int, total: int, rows: int) -> None:
        self._done, self._total, self._rows = done, total, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._total:
            yield Text("opening the files and the tokenizer …", style="dim")
            return
        share = self._done / self._total
        line = Text("reading  ", no_wrap=True, overflow="ellipsis")
        line.append(render_bar(share, min(_WIDE, max(1, options.max_width - _WORDS))))
        line.append(
            f"  {format_count(self._rows, 'row')}, {format_size(self._done)} of {format_size(self._total)}", style="dim"
        )
        yield line
