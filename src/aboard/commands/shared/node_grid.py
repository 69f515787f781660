"""A table of nodes: a label, one mark per subject, and as many further columns as fit."""

from collections.abc import Mapping, Sequence
from dataclasses import field

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.shared.status_marks import StatusMark
from aboard.lazy_dataclass import dataclass

# Above this, equal nodes share a row.
ONE_BY_ONE = 20
GAP = 2
# Characters of a subject's name when the full names leave no room for the nodes.
SHORT = 3
LABEL_AT_LEAST = 12


@dataclass(frozen=True, kw_only=True)
class GridRow:
    """One node, or several equal ones; without marks, the note takes their place."""

    label: str
    marks: tuple[StatusMark, ...] = ()
    more: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    style: str = ""


class NodeGrid:
    """`columns` are further headings, the most important first; those that do not fit are left out."""

    def __init__(self, subjects: Sequence[str], rows: Sequence[GridRow], columns: Sequence[str] = ()) -> None:
        self._subjects = subjects
        self._rows = rows
        self._columns = columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        widest = max((cell_len(row.label) for row in self._rows), default=0)
        heads = list(self._subjects)
        if max(widest, len("node")) + _sum_widths(heads) > width:
            heads = [subject[:SHORT] for subject in heads]
        room = max(LABEL_AT_LEAST, width - _sum_widths(heads))
        label = max(len("node"), min(widest, room))
        columns = self._fitting(width - label - _sum_widths(heads))
        above = "node".ljust(label) + "".join(" " * GAP + head for head in heads)
        above += "".join(" " * GAP + name.rjust(size) for name, size in columns.items())
        yield Text(above.rstrip(), style="dim", no_wrap=True, overflow="crop")
        for row in self._rows:
            if cell_len(row.label) > label:
                # Too long for its column: printed in full on its own line.
                yield Text(row.label, style=row.style, overflow="fold")
            yield self._line(row, label, heads, columns, width)

    def _line(self, row: GridRow, label: int, heads: list[str], columns: Mapping[str, int], width: int) -> Text:
        label_text = row.label if cell_len(row.label) <= label else ""
        line = Text(set_cell_size(label_text, label), style=row.style, no_wrap=True, overflow="ellipsis")
        for mark, head in zip(row.marks, heads, strict=bool(row.marks)):
            line.append(" " * GAP)
            line.append(set_cell_size(mark.sign, len(head)), mark.style)
        for name, size in columns.items():
            line.append(" " * GAP + row.more.get(name, "").rjust(size))
        if row.marks:
            line.rstrip()
        if line.cell_len + GAP + cell_len(row.note) <= width:
            line.append(" " * GAP + row.note)
        line.rstrip()
        return line

    def _fitting(self, room: int) -> dict[str, int]:
        """The columns that fit, with their widths."""
        fitting = {}
        for name in self._columns:
            size = max(cell_len(name), *(cell_len(row.more.get(name, "")) for row in self._rows), 0)
            if size + GAP <= room:
                fitting[name] = size
                room -= size + GAP
        return fitting


def _sum_widths(heads: Sequence[str]) -> int:
    return sum(GAP + len(head) for head in heads)
