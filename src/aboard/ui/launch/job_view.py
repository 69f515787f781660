"""A Slurm job on the terminal: its state as one line that changes, and the output of its script above."""

from collections.abc import Callable
from datetime import datetime

from rich.console import Console
from rich.live import Live
from rich.text import Text

from aboard.core.slurm.job_state import JobPhase, JobStatus, describe_job
from aboard.diagnoses.untrusted import escape_lines


class JobView:
    """A terminal shows the state below the output; a pipe gets a line for each change."""

    def __init__(self, console: Console, *, clock: Callable[[], datetime]) -> None:
        self._console = console
        self._clock = clock
        self._said = ""
        self._partial = b""
        self._live = Live(
            console=console, transient=True, refresh_per_second=4, redirect_stdout=False, redirect_stderr=False
        )

    def show(self, status: JobStatus) -> None:
        if status.phase is JobPhase.ENDED:
            return  # the summary says how
        line = f"job {status.id} {describe_job(status, self._clock())}"
        if self._console.is_terminal:
            if not self._live.is_started:
                self._live.start()
            self._live.update(Text(line, style="dim"))
        elif self._strip_countdown(line) != self._said:
            self._said = self._strip_countdown(line)
            self.say(line)

    def write(self, data: bytes) -> None:
        """Prints whole lines; on a terminal without control characters."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        if lines:
            text = b"\n".join(lines).decode("utf-8", "replace")
            self.say(escape_lines(text) if self._console.is_terminal else text)

    def say(self, text: str) -> None:
        # Not wrapped: the terminal wraps long lines and copies them as one.
        self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        """Removes the state; what was printed stays."""
        if self._partial:
            self.write(b"\n")
        self._live.stop()

    @staticmethod
    def _strip_countdown(line: str) -> str:
        """The line without the time that is left, which changes each minute."""
        return line.partition(", in ")[0]
