"""Prints what a flow returned."""

from collections.abc import Iterable

import click
from rich.console import Console, RenderableType

from aboard.diagnoses.untrusted import escape_lines


def print_notes(notes: Iterable[str | None]) -> None:
    """Prints the notes that there are on stderr; they stop nothing."""
    for note in notes:
        if note is not None:
            click.echo(f"note: {escape_lines(note)}", err=True)


def print_report(console: Console, view: RenderableType, lines: Iterable[str]) -> None:
    """A terminal gets the view, and a pipe or file plain lines."""
    if console.is_terminal:
        console.print(view, crop=False)
        return
    for line in lines:
        click.echo(line)
