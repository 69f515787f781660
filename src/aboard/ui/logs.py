"""Lines of logs, as text: when, which ranks, what. Each is whole in itself, on a terminal and in a pipe.

05:07:12.123 [ranks 0-7,9 ×9] loading the model
05:07:14.022 [ranks 0-7 ×8 ≈] rank 0 listens on port 41822
05:07:15.901 [rank 3 stderr] Traceback (most recent call last):
05:07:16.000 [rank 3] … 12 MiB are missing: dropped on the node, which printed faster than the wire carries
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise

from rich.color import ColorSystem
from rich.style import Style

from aboard.core.logline import Line, Told
from aboard.core.rankset import fold_ranks
from aboard.core.size import size
from aboard.core.words import visible

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_NO_LETTERS = re.compile(r"[\W\d_]+")
_TIME = Style(dim=True)
_OUT = Style(color="cyan")
_ERR = Style(color="yellow")
_MISSING = Style(color="red")


class LogLines:
    """How lines are written: with `styled` for a terminal, where the day is left out of the time."""

    def __init__(self, *, styled: bool) -> None:
        self._styled = styled

    def text(self, told: Told) -> Iterator[str]:
        """The line, without its end; none for the end alone of a line that was shown before."""
        line = told.line
        if line.missing:
            yield self._line(told, f"… {size(line.missing)} are missing: dropped {line.why}", _MISSING)
            return
        for part in _shown(line):
            yield self._line(told, part, None)

    def _line(self, told: Told, text: str, style: Style | None) -> str:
        when, who = self._when(told.line.at), _who(told)
        if not self._styled:
            return f"{when} {who} {text}"
        source = _ERR if told.line.stream == "stderr" else _OUT
        return f"{_drawn(_TIME, when)} {_drawn(source, who)} {_drawn(style, text) if style else text}"

    def _when(self, at: float) -> str:
        try:
            when = datetime.fromtimestamp(at, UTC).astimezone().replace(tzinfo=None)
        except (OverflowError, ValueError, OSError):  # a node's clock may show any number
            return "unknown-time"
        whole = when.isoformat(timespec="milliseconds")
        return whole.partition("T")[2] if self._styled else whole


def raw(line: Line) -> bytes:
    """The bytes as the rank wrote them; what is missing is nothing."""
    return b"" if line.missing else line.text if line.cut else line.text + b"\n"


def _shown(line: Line) -> Iterator[str]:
    """What a terminal would show in the end, and what it would have written over and isn't the same anew."""
    text = line.text.decode("utf-8", "replace")
    if not text.isprintable():
        text = _COLOURS.sub("", text).rstrip("\r").expandtabs()
    if line.continues and not text:
        return
    lead = "… " if line.continues else ""
    if "\r" not in text:
        yield lead + visible(text, len(text) + 1)
        return
    for before, after in pairwise([*filter(None, text.split("\r")), None]):
        # A progress bar draws itself again and again, with other numbers.
        if before is not None and (after is None or _letters(before) != _letters(after)):
            yield lead + visible(before, len(before) + 1)
            lead = "… "


def _letters(text: str) -> str:
    return _NO_LETTERS.sub("", text)


def _who(told: Told) -> str:
    if len(told.ranks) == 1:
        ranks = f"rank {told.ranks[0]}"
    else:
        ranks = f"ranks {fold_ranks(told.ranks)} ×{len(told.ranks)}{' ≈' if told.alike else ''}"
    return f"[{ranks}{' stderr' if told.line.stream == 'stderr' else ''}]"


def _drawn(style: Style, text: str) -> str:
    return style.render(text, color_system=ColorSystem.STANDARD)
