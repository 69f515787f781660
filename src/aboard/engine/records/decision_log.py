"""`decisions.log` of a run: what the conductor decided, sent and waited for, and when. For us, not for programs.

Any module writes to it by `logging.getLogger(__name__)`; without a handler, as in most commands, that costs nothing.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.core.text.byte_sizes import MIB
from aboard.diagnoses.untrusted import escape_text
from aboard.record.run_directory import PRIVATE_FILE, RunDirectory

# Of the present file and of the one before it: the last decisions matter most.
MOST_BYTES = 2 * MIB
_LONGEST = 2000
_LOGGER = logging.getLogger("aboard")


class DecisionFormatter(logging.Formatter):
    """A line per decision: the time, the module and what it said, without secrets and control characters."""

    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(name)s: %(message)s")
        self._scrubber = SecretScrubber()

    def format(self, record: logging.LogRecord) -> str:
        return self._scrubber.text(escape_text(super().format(record), _LONGEST))


class DecisionLogHandler(logging.Handler):
    """Appends to the run's `decisions.log`, and starts a new file when it is full; only the one before is kept."""

    def __init__(self, run: RunDirectory) -> None:
        super().__init__()
        self.setFormatter(DecisionFormatter())
        self._run = run
        self._file = self._open()
        self._room = MOST_BYTES - self._file.tell()

    def emit(self, record: logging.LogRecord) -> None:
        # A full disk must not stop a run; what the record itself could not write is counted there.
        try:
            line = self.format(record) + "\n"
            self._room -= len(line)
            if self._room < 0:
                self._file.close()
                self._run.decisions.replace(self._run.earlier_decisions)
                self._file = self._open()
                self._room = MOST_BYTES - len(line)
            self._file.write(line)
        except (OSError, ValueError):
            return

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()
        super().close()

    def _open(self) -> TextIO:
        descriptor = os.open(self._run.decisions, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE_FILE)
        # Line by line: the last decisions before a crash are why it is read.
        return os.fdopen(descriptor, "a", buffering=1, encoding="utf-8", errors="backslashreplace")


@contextmanager
def write_decisions(run: RunDirectory) -> Iterator[None]:
    """Writes all decisions of a `with` block into the run's log."""
    try:
        handler = DecisionLogHandler(run)
    except OSError:
        yield
        return
    _add_handler(handler)
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        handler.close()


def show_decisions() -> None:
    """Shows them on stderr from now on, as --debug does."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(DecisionFormatter())
    _add_handler(handler)


def _add_handler(handler: logging.Handler) -> None:
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.DEBUG)
