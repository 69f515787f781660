"""`aboard why --log` and `--bundle`."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from aboard import __version__
from aboard.flows.unpack import replay_bundle
from aboard.flows.why_log import Explained, explain
from aboard.ui.as_json import dump_json
from aboard.ui.figures import many
from aboard.ui.findings import FindingsView
from aboard.ui.log_live import LogReading
from aboard.ui.replayed import ReplayedView

EXIT_FOUND = 2


def tell_logs(names: Sequence[str], *, as_json: bool) -> None:
    """Explains the logs and ends the program: 0 nothing is wrong, 2 something is."""
    told = _read(names)
    if as_json:
        click.echo(dump_json(told))
    elif told.findings:
        console = Console(highlight=False)
        console.print(FindingsView(told.findings, in_full=True), crop=False)
        click.secho(f"aboard why {told.findings[0].code}    # the whole story of it", dim=True)
    else:
        click.echo(f"nothing wrong in {many(told.lines, 'line')} of {many(len(told.files), 'file')}")
        if told.last:
            click.secho(f"the last one is: {told.last[-1].visible(400)}", dim=True)
    sys.exit(EXIT_FOUND if told.findings else 0)


def _read(names: Sequence[str]) -> Explained:
    if not sys.stderr.isatty():
        return explain(names)
    with LogReading(Console(stderr=True, highlight=False)) as reading:
        return explain(names, progress=reading.update)


def tell_bundle(name: str, *, verbose: bool) -> None:
    """Judges what somebody packed, and ends the program with the same codes."""
    unpacked = replay_bundle(Path(name))
    told = unpacked.replayed
    click.secho(f"{told.run}, packed by aboard {unpacked.version}", dim=True)
    if told.why.findings or told.changed:
        Console(highlight=False).print(ReplayedView(told, now=__version__, verbose=verbose), crop=False)
    else:
        click.echo("nothing was found wrong with it")
    sys.exit(EXIT_FOUND if told.why.findings else 0)
