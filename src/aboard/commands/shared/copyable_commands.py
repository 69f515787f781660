"""Commands printed so that they can be copied: never broken, with the remark moved above if there is no room."""

import re
import shlex

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.diagnoses import Fix

# What a command is for, or where to run it, follows the command after this.
REMARK = "    # "
_SHARP = "# "


class CopyableCommands:
    """Each line after the indent; a remark that does not fit beside its command goes above it, advice is wrapped.

    Whatever is pasted of it, no part of a remark is run. The terminal wraps a command that is too wide, so that it is
    copied as one line: print this with `crop=False`.
    """

    def __init__(self, lines: str, *, first: Text) -> None:
        self._lines = lines.splitlines()
        self._first = first
        self._is_advice = isinstance(lines, Fix) and lines.is_advice

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        indent = self._first
        beside = options.max_width - cell_len(indent.plain)
        for line in self._lines:
            if self._is_advice and cell_len(line) > beside:
                yield from wrap_labelled(indent, line, options.max_width, style="green")
                indent = _make_blank(indent)
                continue
            command, mark, remark = split_remark(line)
            if mark and cell_len(line) > beside:
                for part in wrap_labelled(Text(), remark, beside - len(_SHARP)):
                    yield Text.assemble(indent, (_SHARP + part.plain, "dim"), no_wrap=True, overflow="ignore")
                    indent = _make_blank(indent)
            rendered = Text.assemble(indent, (command, "green"), no_wrap=True, overflow="ignore")
            if mark and cell_len(line) <= beside:
                rendered.append(mark + remark, style="dim")
            yield rendered
            indent = _make_blank(indent)


def split_remark(line: str) -> tuple[str, str, str]:
    """The command, what comes before its remark, and the remark: the same text in a quoted word is no remark."""
    for mark in re.finditer(REMARK, line):
        command = line[: mark.start()]
        try:
            shlex.split(command)
        except ValueError:
            continue
        return command, REMARK, line[mark.end() :]
    return line, "", ""


def _make_blank(indent: Text) -> Text:
    return Text(" " * cell_len(indent.plain))
