"""An error on a terminal: its name, what was seen, what to type."""

from rich.console import Console
from rich.text import Text

from aboard.core.errors import AboardError, InputError


def show_error(console: Console, error: AboardError) -> None:
    console.print(Text.assemble(("error", "bold red"), f" [{error.code}]"))
    if isinstance(error, InputError):
        for problem in error.problems:
            console.print(Text.assemble("  ", (problem.where, "bold"), f"  {problem.seen}"), soft_wrap=True)
            console.print(Text.assemble(("  fix  ", "dim"), (problem.fix, "green")), soft_wrap=True)
    else:
        console.print(Text(f"  {error.seen}"), soft_wrap=True)
        console.print(Text.assemble(("  fix  ", "dim"), (error.fix, "green")), soft_wrap=True)
