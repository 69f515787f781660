"""Python tracebacks, of many ranks at once: from the first line to the exception at the end."""

import re

from aboard.lazy_dataclass import dataclass

_OPENS = "Traceback (most recent call last)"
_FRAME = re.compile(r'File "([^"]+)", line (\d+)(?:, in (\S+))?')
_LIBRARY = re.compile(r"site-packages|dist-packages|lib/python3|<frozen|<string>")
_EXCEPTION = re.compile(
    r"(?:[\w.]{1,200}\.)?[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Exit|Iteration|Failure|Expired|Timeout)\w{0,40}(?::|$)"
    r"|[\w.]{1,200}\.\w{0,80}(?:Error|Exception)\w{0,40}: "
)
_MOST_LINES = 2_000
_MOST_OPEN = 4_096


@dataclass(slots=True)
class _OpenTraceback:
    indent: int
    lines: int = 0
    frame: str = ""


@dataclass(frozen=True)
class LoggedException:
    """The exception that ends a traceback, and the last frame in the user's own code."""

    text: str
    frame: str


class TracebackParser:
    """Parses interleaved tracebacks, at most one open per source; an endless one is dropped."""

    def __init__(self) -> None:
        self._open: dict[tuple[object, ...], _OpenTraceback] = {}

    @property
    def waiting(self) -> bool:
        return bool(self._open)

    def take(self, source: tuple[object, ...], text: str) -> LoggedException | None:
        """The exception, when this line is one that ends a traceback."""
        if _OPENS in text:
            if len(self._open) < _MOST_OPEN:
                # Below `traceback : Traceback …` in torchrun's summary the rest is indented by four.
                begun = text.lstrip()
                indent = len(text) - len(begun) if begun.startswith("Traceback") else 4
                self._open[source] = _OpenTraceback(indent)
            return None
        trace = self._open.get(source)
        if trace is None:
            return None
        trace.lines += 1
        bare = text.strip()
        deeper = len(text) - len(text.lstrip()) > trace.indent
        if not bare or deeper or set(bare) <= set("^~ ") or bare.startswith(("File ", "[Previous line")):
            frame = _FRAME.search(bare)
            if frame and not _LIBRARY.search(frame[1]):
                trace.frame = f"{frame[1].rpartition('/')[2]}:{frame[2]}"
            if trace.lines > _MOST_LINES:
                del self._open[source]
            return None
        if not is_exception_line(bare):
            # A line of another rank came in between, which is harmless.
            if trace.lines > _MOST_LINES:
                del self._open[source]
            return None
        del self._open[source]
        return LoggedException(bare, trace.frame)


def is_exception_line(text: str) -> bool:
    """Whether a line is how Python writes an exception."""
    return _EXCEPTION.match(text) is not None
