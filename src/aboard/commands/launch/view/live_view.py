"""The live rank table at the bottom of the terminal, with the ranks' output above it."""

from collections.abc import Callable, Iterable
from time import monotonic

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from aboard.commands.launch.view.roster_view import RosterView
from aboard.commands.shared.labelled_text import wrap_words
from aboard.core.run.run_progress import RunProgress

# Each print redraws the rank table below it, so lines are printed in batches.
BATCH_SECONDS = 0.1


class LaunchLiveView:
    """For one thread. Printed lines wait until the next `update` at the latest, which comes several times a second."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = monotonic) -> None:
        self._console = console
        self._clock = clock
        # All our output goes through the console, so there is nothing to redirect.
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._pending: list[RenderableType] = []
        self._printed = float("-inf")

    def update(self, progress: RunProgress) -> None:
        """Redraws the rank table."""
        self._flush()
        if not self._live.is_started:
            self._live.start()
        self._live.update(RosterView(progress), refresh=True)

    def wait_for(self, text: str) -> None:
        """Shows one line instead of the rank table; none if it is empty."""
        self._flush()
        if text and not self._live.is_started:
            self._live.start()
        self._live.update(Text(text, style="dim", overflow="ellipsis", no_wrap=True), refresh=self._live.is_started)

    def say(self, what: str | RenderableType) -> None:
        """Prints above the rank table; a string may have ANSI colours."""
        self._pending.append(Text.from_ansi(what) if isinstance(what, str) else what)
        if self._clock() - self._printed >= BATCH_SECONDS:
            self._flush()

    def close(self) -> None:
        """Removes the rank table; printed lines stay."""
        self._flush()
        self._live.stop()

    def _flush(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, []
            width = self._console.width
            lines = [part for each in pending for part in _wrap_rendered(each, width)]
            # The terminal wraps a word that is longer than a line, and copies it as one.
            self._console.print(*lines, sep="\n", soft_wrap=True)
            self._printed = self._clock()


def _wrap_rendered(what: RenderableType, width: int) -> Iterable[RenderableType]:
    return wrap_words(what, width) if isinstance(what, Text) else (what,)
