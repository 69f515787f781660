"""What scripts print, as lines of a file."""

from collections.abc import Sequence
from typing import TextIO

from aboard.diagnoses.untrusted import escape_lines


class ScriptLog:
    """Writes what scripts print to a file, for which nobody waits."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def script_line(self, node: str, stream: str, text: str, *, of_rank: bool = False) -> None:
        print(f"[script on {node}] {text}", file=self._file, flush=True)

    def script_captured(self, text: str, notes: Sequence[str]) -> None:
        print(text, *(f"note: {escape_lines(note)}" for note in notes), sep="\n", file=self._file, flush=True)

    def script_note(self, text: str) -> None:
        print(f"note: {text}", file=self._file, flush=True)

    def script_waits(self, text: str) -> None:
        """Nobody is looking."""

    def script_resumes(self) -> None:
        """The lines of ranks are not in this file."""
