"""Commands printed so that they can be copied: never broken, with the remark moved above if there is no room."""

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.shared.labelled_text import wrap_labelled

# What a command is for, or where to run it, follows the command after this.
REMARK = "    # "


class CopyableCommands:
    """Each line after the indent; a remark that does not fit beside its command goes above it.

    The terminal wraps a command that is too wide, so that it is copied as one line: print this with `crop=False`.
    """

    def __init__(self, lines: str, *, first: Text) -> None:
        self._lines = lines.splitlines()
        self._first = first

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        indent = self._first
        beside = options.max_width - cell_len(indent.plain)
        for line in self._lines:
            command, mark, remark = line.partition(REMARK)
            if mark and cell_len(line) > beside:
                yield from wrap_labelled(indent, f"# {remark}", options.max_width, style="dim")
                indent = _make_blank(indent)
            rendered = Text.assemble(indent, (command, "green"), no_wrap=True, overflow="ignore")
            if mark and cell_len(line) <= beside:
                rendered.append(mark + remark, style="dim")
            yield rendered
            indent = _make_blank(indent)


def _make_blank(indent: Text) -> Text:
    return Text(" " * cell_len(indent.plain))
