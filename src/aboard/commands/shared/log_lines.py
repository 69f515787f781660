"""Log lines as text: time, ranks, output. Each line is self-contained, on a terminal and in a pipe.

05:07:12.123 [ranks 0-7,9 ×9] loading the model
05:07:14.022 [ranks 0-7 ×8 ≈] rank 0 listens on port 41822
05:07:15.901 [rank 3 stderr] Traceback (most recent call last):
05:07:16.000 [rank 3] … 12 MiB are missing: dropped on the node, …
"""

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise

from rich.color import ColorSystem
from rich.style import Style

from aboard.core.text.byte_sizes import format_size
from aboard.core.text.fold_lines import FoldedLine, OutputLine
from aboard.core.text.rank_sets import fold_ranks
from aboard.diagnoses.untrusted import escape_text
from aboard.lazy_dataclass import dataclass

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_NO_LETTERS = re.compile(r"[\W\d_]+")
_TIME = Style(dim=True)
_OUT = Style(color="cyan")
_ERR = Style(color="yellow")
_MISSING = Style(color="red")


class LogLineFormatter:
    """Formats log lines; `styled` is for a terminal, where the time has no date.

    `find_attempt` says which attempt of the run printed something at a time; None if there was only one. `of_script` is
    for lines of scripts, which name their node.
    """

    def __init__(
        self,
        *,
        styled: bool,
        find_attempt: Callable[[float], int | None] = lambda _at: None,
        of_script: bool = False,
    ) -> None:
        self._styled = styled
        self._find_attempt = find_attempt
        self._of_script = of_script

    def text(self, folded: FoldedLine) -> Iterator[str]:
        """The lines to print, without line ends; none if the entry only ends a line that was already shown."""
        line = folded.line
        if line.missing:
            yield self._line(folded, f"… {format_size(line.missing)} are missing: dropped {line.why}", _MISSING)
            return
        for part in _format_visible(line):
            yield self._line(folded, part, None)

    def _line(self, folded: FoldedLine, text: str, style: Style | None) -> str:
        when = self._when(folded.line.at)
        if self._of_script:
            who = format_script(folded.line.node, folded.line.stream)
        else:
            who = _format_ranks(folded, self._find_attempt(folded.line.at))
        if not self._styled:
            return f"{when} {who} {text}"
        source = _ERR if folded.line.stream == "stderr" else _OUT
        return f"{_apply_style(_TIME, when)} {_apply_style(source, who)} {_apply_style(style, text) if style else text}"

    def _when(self, at: float) -> str:
        try:
            when = datetime.fromtimestamp(at, UTC).astimezone().replace(tzinfo=None)
        except (OverflowError, ValueError, OSError):  # a node's clock may show any number
            return "unknown-time"
        whole = when.isoformat(timespec="milliseconds")
        return whole.partition("T")[2] if self._styled else whole


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """A line of output, with the `ranks` that printed it; if `alike`, theirs differ in numbers.

    `text` is that of the earliest rank, on `node`. With --script, `ranks` is empty. `at` is in seconds since 1970.
    `attempt` is null if the run had only one. If output was dropped here, `missing` is the number of bytes, and `why`
    says where.
    """

    at: float
    ranks: tuple[int, ...]
    node: str
    stream: str
    attempt: int | None
    alike: bool
    text: str
    missing: int
    why: str


def list_entries(folded: FoldedLine, attempt: int | None, *, of_script: bool = False) -> Iterator[LogEntry]:
    """The same lines that `LogLineFormatter` prints."""
    line = folded.line
    for text in [""] if line.missing else _format_visible(line):
        yield LogEntry(
            at=line.at,
            ranks=() if of_script else tuple(folded.ranks),
            node=line.node,
            stream=line.stream,
            attempt=attempt,
            alike=folded.alike,
            text=text,
            missing=line.missing,
            why=line.why,
        )


def format_script(node: str, stream: str) -> str:
    """Whose output a line of a script is."""
    return f"[script on {node}{' stderr' if stream == 'stderr' else ''}]"


def format_raw(line: OutputLine) -> bytes:
    """The bytes as the rank wrote them; empty for missing output."""
    return b"" if line.missing else line.text if line.cut else line.text + b"\n"


def _format_visible(line: OutputLine) -> Iterator[str]:
    """The line as a terminal would finally show it, preceded by overwritten text that differs in more than numbers."""
    text = line.text.decode("utf-8", "replace")
    if not text.isprintable():
        text = _COLOURS.sub("", text).rstrip("\r").expandtabs()
    if line.continues and not text:
        return
    lead = "… " if line.continues else ""
    if "\r" not in text:
        yield lead + escape_text(text, len(text) + 1)
        return
    for before, after in pairwise([*filter(None, text.split("\r")), None]):
        # A progress bar redraws itself with other numbers.
        if before is not None and (after is None or _keep_letters(before) != _keep_letters(after)):
            yield lead + escape_text(before, len(before) + 1)
            lead = "… "


def _keep_letters(text: str) -> str:
    return _NO_LETTERS.sub("", text)


def _format_ranks(folded: FoldedLine, attempt: int | None) -> str:
    if len(folded.ranks) == 1:
        ranks = f"rank {folded.ranks[0]}"
    else:
        ranks = f"ranks {fold_ranks(folded.ranks)} ×{len(folded.ranks)}{' ≈' if folded.alike else ''}"
    which = "" if attempt is None else f"attempt {attempt}, "
    return f"[{which}{ranks}{' stderr' if folded.line.stream == 'stderr' else ''}]"


def _apply_style(style: Style, text: str) -> str:
    return style.render(text, color_system=ColorSystem.STANDARD)
