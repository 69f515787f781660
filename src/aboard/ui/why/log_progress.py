"""The progress of reading logs, on one transient line."""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.core.text.byte_sizes import format_size
from aboard.ui.progress_bar import TransientView, render_bar

_WIDE, _WORDS = 40, 40


class LogReadingView(TransientView):
    """A progress bar by bytes; none for a pipe, whose length is unknown."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._done = self._total = 0

    def update(self, done: int, total: int) -> None:
        self._done, self._total = done, total

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text("reading  ", no_wrap=True, overflow="ellipsis")
        if self._total:
            line.append(render_bar(self._done / self._total, min(_WIDE, max(1, options.max_width - _WORDS))))
            line.append(f"  {format_size(self._done)} of {format_size(self._total)}", style="dim")
        yield line
