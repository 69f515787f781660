"""Notes for the user that stop nothing."""

from collections.abc import Iterable

import click

from aboard.diagnoses.untrusted import escape_lines


def print_notes(notes: Iterable[str | None]) -> None:
    """Prints those that there are on stderr."""
    for note in notes:
        if note is not None:
            click.echo(f"note: {escape_lines(note)}", err=True)
