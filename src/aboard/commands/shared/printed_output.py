"""Prints what a flow returned."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console, RenderableType

from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import escape_lines

# The width of a pipe or a file.
UNBROKEN = 100_000


def build_console(*, stderr: bool = False) -> Console:
    """A console that breaks lines at the width of a terminal, or of COLUMNS, and none in a pipe or a file."""
    console = Console(highlight=False, stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNBROKEN
    return console


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


def print_findings(console: Console, findings: Sequence[Finding], *, in_full: bool = False) -> None:
    """Prints those that there are."""
    if findings:
        from aboard.commands.shared.findings.findings_view import FindingsView  # noqa: PLC0415 - findings are rare

        console.print(FindingsView(findings, in_full=in_full), crop=False)


def print_warnings(console: Console, findings: Sequence[Finding], *, without: str = "") -> None:
    """Prints the warnings but those of one code, unless a finding stops the run: then they are printed with it."""
    if not any(each.severity is Severity.BLOCK for each in findings):
        print_findings(console, [each for each in findings if each.severity is Severity.WARN and each.code != without])


@contextmanager
def end_at_closed_pipe() -> Iterator[None]:
    """`aboard logs | head` closes the pipe; Python would report an error when it flushes at exit."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
