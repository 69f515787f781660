"""Lines to type, drawn so that they can be copied: a command is never broken, its remark gives way."""

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.ui.labelled_text import wrap_labelled

# How rules write what a command is for, or where to type it: behind the command itself.
REMARK = "    # "


class CopyableCommands:
    """Each line behind the indent; a remark that doesn't fit beside its command goes above it.

    A command that is wider than the terminal is left to the terminal to wrap, which then copies it as one line; so
    this must be printed with `crop=False`.
    """

    def __init__(self, lines: str, *, first: Text, style: str = "green") -> None:
        self._lines = lines.splitlines()
        self._first = first
        self._style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        indent = self._first
        beside = options.max_width - cell_len(indent.plain)
        for line in self._lines:
            command, mark, remark = line.partition(REMARK)
            if mark and cell_len(line) > beside:
                yield from wrap_labelled(indent, f"# {remark}", options.max_width, style="dim")
                indent = _make_blank(indent)
            rendered = Text.assemble(indent, (command, self._style), no_wrap=True, overflow="ignore")
            if mark and cell_len(line) <= beside:
                rendered.append(mark + remark, style="dim")
            yield rendered
            indent = _make_blank(indent)


def _make_blank(indent: Text) -> Text:
    return Text(" " * cell_len(indent.plain))
