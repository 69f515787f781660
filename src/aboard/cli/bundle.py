"""`aboard bundle`."""

import getpass
import os
import sys
from pathlib import Path

import click

from aboard.core.scrub import Scrub
from aboard.core.size import size
from aboard.diagnoses import AboardError, records
from aboard.flows.bundle import Bundle, pack, write
from aboard.record.runs import Runs


@click.command()
@click.argument("run", required=False)
@click.option("-o", "--output", metavar="FILE", help="Where to; ./RUN.tar.gz, unless said.")
@click.option("--hide-addresses", is_flag=True, help="IP addresses become made-up ones, 198.18.…")
@click.option("-y", "--yes", is_flag=True, help="Write it without asking.")
def bundle(run: str | None, output: str | None, hide_addresses: bool, yes: bool) -> None:
    """Pack the record of a RUN into a redacted archive, to show it to somebody else.

    What goes in is listed before it is written: the plan, events, samples, findings, the last looks at the nodes that
    led to a verdict (processes, connections, stacks, flight records) and the last lines of each rank's log. Keys,
    tokens, passwords, home directories and user names are taken out; of the environment only names stay, but for what
    says how ranks talk to each other (NCCL_…, CUDA_…). Names of nodes stay. Look at it before you send it.

    `aboard why --bundle FILE` judges it again, on any machine, by the rules of the version there.
    """
    found = Runs.of(os.environ).find(run)
    packed = pack(found, Scrub(users=_users(), hide_addresses=hide_addresses))
    _list(packed)
    path = Path(output or f"{found.id}.tar.gz")
    if not yes:
        if not sys.stdin.isatty():
            seen = "nobody is there to be asked whether to write it"
            raise AboardError(records.BUNDLE_ASK, seen, run=found.id)
        click.confirm(f"write {path}?", abort=True)
    written = write(packed, path)
    click.echo(f"{path}  {size(written)}")
    click.secho(f"aboard why --bundle {path}    # what it shows", dim=True)


def _list(packed: Bundle) -> None:
    for name, content in sorted(packed.parts.items()):
        click.echo(f"  {name:<20} {size(len(content)):>9}")
    for kind, count in packed.removed.items():
        click.echo(f"  taken out: {count:,} × {kind}")


def _users() -> tuple[str, ...]:
    try:
        return (getpass.getuser(),)
    except (KeyError, OSError):  # a container whose user has no name
        return ()
