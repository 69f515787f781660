"""The live roster at the foot of the terminal, with what ranks print running above it."""

from collections.abc import Callable
from time import monotonic

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from aboard.core.run.run_progress import RunProgress
from aboard.ui.launch.roster_view import RosterView

# Each print draws the roster anew below it: a flood of lines is printed in lots.
LOT_SECONDS = 0.1


class LaunchLiveView:
    """For one thread. What is said waits at the longest for the next `update`, which comes some times a second."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = monotonic) -> None:
        self._console = console
        self._clock = clock
        # Nothing of ours prints past the console, and a rank's output is no file of ours to redirect.
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._said: list[RenderableType] = []
        self._printed = float("-inf")

    def update(self, roster: RunProgress) -> None:
        """Draws the roster in place of the one before."""
        self._flush()
        if not self._live.is_started:
            self._live.start()
        self._live.update(RosterView(roster), refresh=True)

    def say(self, what: str | RenderableType) -> None:
        """Prints above the roster; a string is taken with its colours, and as it is else."""
        self._said.append(Text.from_ansi(what) if isinstance(what, str) else what)
        if self._clock() - self._printed >= LOT_SECONDS:
            self._flush()

    def close(self) -> None:
        """Takes the roster away; what was said stays."""
        self._flush()
        self._live.stop()

    def _flush(self) -> None:
        if self._said:
            pending, self._said = self._said, []
            # Not wrapped: the terminal does that, and copies a long line as one.
            self._console.print(*pending, sep="\n", soft_wrap=True)
            self._printed = self._clock()
