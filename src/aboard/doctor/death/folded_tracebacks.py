"""Folds tracebacks that only report a lost peer: when a rank dies, each of the others prints one."""

from collections.abc import Iterable, Iterator

from aboard.core.text.fold_lines import OutputLine
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.death.first_death import is_echo_text
from aboard.doctor.logs.line_prefixes import parse_log_line
from aboard.doctor.logs.tracebacks import is_exception_line

_OPENS = b"Traceback (most recent call last)"
# A longer one is shown as it comes, and so is one that is not complete after this many calls.
_MOST_LINES = 400
_MOST_CALLS = 4
# What torch prints below an exception of its C++ code.
_NATIVE = ("frame #", "Exception raised from")


class TracebackFolder:
    """Holds back each rank's traceback until its exception is known; one source is a rank's stream."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._held: dict[tuple[int, str], list[OutputLine]] = {}
        self._calls: dict[tuple[int, str], int] = {}
        self._folded: set[tuple[int, str]] = set()

    def fold(self, lines: Iterable[OutputLine], *, last: bool = False) -> Iterator[OutputLine]:
        """The lines in order, with one line in place of each such traceback; `last` releases what is incomplete."""
        for line in lines:
            yield from self._take(line)
        for source in list(self._held):
            self._calls[source] = self._calls.get(source, 0) + 1
            if last or self._calls[source] >= _MOST_CALLS:
                yield from self._release(source)

    def _take(self, line: OutputLine) -> Iterator[OutputLine]:
        source = (line.rank, line.stream)
        if source not in self._held:
            if _OPENS in line.text:
                self._held[source] = [line]
                self._folded.discard(source)
            elif source not in self._folded or not self._is_native(source, line):
                yield line
            return
        held = self._held[source]
        held.append(line)
        text = parse_log_line(line.text.decode("utf-8", "replace")).text
        if line.missing or len(held) > _MOST_LINES:
            yield from self._release(source)
        elif not text.startswith(" ") and is_exception_line(text):
            if is_echo_text(Untrusted(text)):
                note = f" (follows from another rank; {len(held)} lines: aboard logs {self._run} --rank {line.rank})"
                yield line._replace(text=line.text.rstrip() + note.encode())
                self._folded.add(source)
                self._drop(source)
            else:
                yield from self._release(source)

    def _is_native(self, source: tuple[int, str], line: OutputLine) -> bool:
        text = parse_log_line(line.text.decode("utf-8", "replace")).text.strip()
        if not text or text.startswith(_NATIVE):
            return True
        self._folded.discard(source)
        return False

    def _release(self, source: tuple[int, str]) -> list[OutputLine]:
        held = self._held[source]
        self._drop(source)
        return held

    def _drop(self, source: tuple[int, str]) -> None:
        self._held.pop(source, None)
        self._calls.pop(source, None)
