"""An error on a terminal: its code, what was observed, the fix."""

from rich.console import Console
from rich.text import Text

from aboard.commands.shared.copyable_commands import CopyableCommands
from aboard.diagnoses import AboardError, InputError


def show_error(console: Console, error: AboardError) -> None:
    console.print(Text.assemble(("error", "bold red"), f" [{error.code}]"))
    if isinstance(error, InputError):
        for problem in error.problems:
            seen = _indent_lines(problem.seen)
            console.print(Text.assemble("  ", (problem.where, "bold"), f"  {seen}"), soft_wrap=True)
            _show_fix(console, problem.fix)
    else:
        console.print(Text(f"  {_indent_lines(error.seen)}"), soft_wrap=True)
        _show_fix(console, error.fix)


def _show_fix(console: Console, lines: str) -> None:
    label = Text("  fix  ", style="dim")
    if console.is_terminal:
        console.print(CopyableCommands(lines, first=label), crop=False)
    else:
        console.print(Text.assemble(label, (_indent_lines(lines), "green")), soft_wrap=True)


def _indent_lines(text: str) -> str:
    """Aligns the lines after the first, so that none looks like a line of ours."""
    return text.replace("\n", "\n       ")
