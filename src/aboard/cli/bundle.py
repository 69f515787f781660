"""`aboard bundle`."""

import getpass
import os
import sys
from pathlib import Path

import click

from aboard.core.text.byte_sizes import format_size
from aboard.core.text.secret_scrubber import SecretScrubber
from aboard.diagnoses import AboardError
from aboard.diagnoses.usage import run_records
from aboard.flows.bundle import Bundle, pack_run, write_bundle
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
    run_directory = Runs.of(os.environ).find(run)
    archive = pack_run(run_directory, SecretScrubber(users=_list_users(), hide_addresses=hide_addresses))
    _print_contents(archive)
    path = Path(output or f"{run_directory.id}.tar.gz")
    if not yes:
        if not sys.stdin.isatty():
            seen = "nobody is there to be asked whether to write it"
            raise AboardError(run_records.BUNDLE_ASK, seen, run=run_directory.id)
        click.confirm(f"write {path}?", abort=True)
    written_bytes = write_bundle(archive, path)
    click.echo(f"{path}  {format_size(written_bytes)}")
    click.secho(f"aboard why --bundle {path}    # what it shows", dim=True)


def _print_contents(archive: Bundle) -> None:
    for name, content in sorted(archive.parts.items()):
        click.echo(f"  {name:<20} {format_size(len(content)):>9}")
    for kind, count in archive.removed.items():
        click.echo(f"  taken out: {count:,} × {kind}")


def _list_users() -> tuple[str, ...]:
    try:
        return (getpass.getuser(),)
    except (KeyError, OSError):  # a container whose user has no name
        return ()
