"""An error on a terminal: its code, what was observed, the fix."""

from rich.console import Console
from rich.text import Text

from aboard.diagnoses import AboardError, InputError


def show_error(console: Console, error: AboardError) -> None:
    console.print(Text.assemble(("error", "bold red"), f" [{error.code}]"))
    if isinstance(error, InputError):
        for problem in error.problems:
            console.print(Text.assemble("  ", (problem.where, "bold"), f"  {problem.seen}"), soft_wrap=True)
            console.print(_render_fix(problem.fix), soft_wrap=True)
    else:
        console.print(Text(f"  {error.seen}"), soft_wrap=True)
        console.print(_render_fix(error.fix), soft_wrap=True)


def _render_fix(lines: str) -> Text:
    """The fix with its lines aligned."""
    return Text.assemble(("  fix  ", "dim"), (lines.replace("\n", "\n       "), "green"))
