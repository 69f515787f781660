"""A progress bar, and a transient line that shows one."""

from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

FULL = "━"


def render_bar(share: float, width: int, *, style: str = "green") -> Text:
    """`width` cells; full only at 100 %, and at least one cell once anything is done."""
    filled = min(width, max(0, int(share * width)))
    if share > 0 and width > 1:
        filled = max(1, filled)
    # A different character for the rest: the bar must be readable without colours.
    return Text.assemble((FULL * filled, style), ("─" * (width - filled), "dim"), no_wrap=True)


class TransientView:
    """A view that is on the screen while its block runs, and leaves nothing behind; subclasses render it."""

    def __init__(self, console: Console) -> None:
        self._live = Live(self, console=console, transient=True, refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        raise NotImplementedError
