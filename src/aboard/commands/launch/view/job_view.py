"""A Slurm job on the terminal: its state, then the rank table, with the output of its script above."""

from collections.abc import Callable
from datetime import datetime

from rich.console import Console
from rich.live import Live
from rich.text import Text

from aboard.commands.launch.view.live_view import LaunchLiveView
from aboard.core.run.run_progress import RunProgress
from aboard.core.slurm.job_state import JobPhase, JobStatus, describe_job, describe_reason
from aboard.diagnoses.untrusted import escape_lines


class JobView:
    """A terminal shows the state or the rank table below the output; a pipe gets a line for each change."""

    def __init__(self, console: Console, run: str, *, clock: Callable[[], datetime]) -> None:
        self._console = console
        self._run = run
        self._clock = clock
        self._said = ""
        self._stuck = ""
        self._partial = b""
        self._state: Live | None = None
        self._table: LaunchLiveView | None = None

    @property
    def shows_progress(self) -> bool:
        return self._console.is_terminal

    def show(self, status: JobStatus) -> None:
        if status.is_stuck and self._stuck != status.reason.raw():
            self._stuck = status.reason.raw()
            why = f"job {status.id} does not start by itself: {describe_reason(status.reason)}"
            self.say(f"{why}\n    aboard why {self._run}\n    aboard stop {self._run}")
        if status.phase is not JobPhase.RUNNING:
            self._close_table()
        if status.phase is JobPhase.ENDED:
            self._close_state()
            return  # the summary says how
        line = f"job {status.id} {describe_job(status, self._clock())}"
        if self._console.is_terminal:
            self._show_state(line)
        elif _drop_countdown(line) != self._said:
            self._said = _drop_countdown(line)
            self.say(line)

    def update(self, progress: RunProgress) -> None:
        """Shows the rank table instead of the job's state."""
        self._close_state()
        if self._table is None:
            self._table = LaunchLiveView(self._console)
        self._table.update(progress)

    def write(self, data: bytes) -> None:
        """Prints whole lines; on a terminal without control characters."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        if lines:
            text = b"\n".join(lines).decode("utf-8", "replace")
            self.say(escape_lines(text) if self._console.is_terminal else text)

    def say(self, text: str) -> None:
        if self._table is not None:
            self._table.say(Text(text))
        else:
            # Not wrapped: the terminal wraps long lines and copies them as one.
            try:
                self._console.print(Text(text), soft_wrap=True)
            except SystemExit:  # of rich, where `| head` has closed the pipe; a task that ends by it ends the loop
                raise BrokenPipeError from None

    def close(self) -> None:
        """Removes the state and the rank table; what was printed stays."""
        if self._partial:
            self.write(b"\n")
        self._close_table()
        self._close_state()

    def _show_state(self, line: str) -> None:
        if self._table is not None:
            return
        if self._state is None:
            # All our output goes through the console, so there is nothing to redirect.
            self._state = Live(console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False)
            self._state.start()
        self._state.update(Text(line, style="dim"))

    def _close_state(self) -> None:
        if self._state is not None:
            self._state.stop()
            self._state = None

    def _close_table(self) -> None:
        if self._table is not None:
            self._table.close()
            self._table = None


def _drop_countdown(line: str) -> str:
    """The line without the time that is left, which changes each minute."""
    return line.partition(", in ")[0]
