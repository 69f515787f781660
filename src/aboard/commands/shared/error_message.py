"""An error on a terminal: its code, what was observed, the fix."""

from rich.console import Console
from rich.text import Text

from aboard.diagnoses import AboardError, InputError


def show_error(console: Console, error: AboardError) -> None:
    console.print(Text.assemble(("error", "bold red"), f" [{error.code}]"))
    if isinstance(error, InputError):
        for problem in error.problems:
            seen = _indent_lines(problem.seen)
            console.print(Text.assemble("  ", (problem.where, "bold"), f"  {seen}"), soft_wrap=True)
            console.print(_render_fix(problem.fix), soft_wrap=True)
    else:
        console.print(Text(f"  {_indent_lines(error.seen)}"), soft_wrap=True)
        console.print(_render_fix(error.fix), soft_wrap=True)


def _render_fix(lines: str) -> Text:
    return Text.assemble(("  fix  ", "dim"), (_indent_lines(lines), "green"))


def _indent_lines(text: str) -> str:
    """Aligns the lines after the first, so that none looks like a line of ours."""
    return text.replace("\n", "\n       ")
