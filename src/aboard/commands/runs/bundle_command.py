"""`aboard bundle`."""

import os
import sys
from pathlib import Path

import click

from aboard.commands.launch.slurm_forwarding import read_from_batch_host
from aboard.commands.shared.options.completion import complete_runs
from aboard.commands.shared.page.write_page import list_users
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import escape_lines, quote_word
from aboard.diagnoses.usage import run_records
from aboard.engine.records.bundle import pack_run, write_bundle
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import Runs

# An archive for another machine, such as the login node of a Slurm cluster.
STDOUT = "-"


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("-o", "--output", metavar="FILE", help="The archive to write, or - for stdout; default: ./RUN.tar.gz.")
@click.option("--hide-addresses", is_flag=True, help="Replace IP addresses with made-up ones (198.18.…).")
@click.option("-y", "--yes", is_flag=True, help="Write the archive without asking.")
def bundle(run: str | None, output: str | None, hide_addresses: bool, yes: bool) -> None:
    """Pack the record of a RUN into a redacted archive that you can share.

    Aboard lists the contents before it writes them: the plan, events, measurements, findings, the last snapshots of
    the nodes that led to a verdict (processes, connections, stacks, flight records) and the last lines of each rank's
    log. Keys, tokens, passwords, home directories and user names are removed. Environment variables keep only their
    names, except those that configure communication between ranks (NCCL_…, CUDA_…). Node names stay. Review the
    archive before you send it.

    `aboard why --bundle FILE` diagnoses the run on any machine, with the rules of the Aboard version there.
    """
    run_directory = Runs.of(os.environ).find(run)
    scrubber = SecretScrubber(users=list_users(), hide_addresses=hide_addresses)
    if output == STDOUT:
        sys.stdout.buffer.write(_pack_run(run_directory, scrubber, err=True))
        return
    hidden = ["--hide-addresses"] if hide_addresses else []
    data = read_from_batch_host(run_directory, ["bundle", run_directory.id, "--output", STDOUT, *hidden])
    if data is None:
        data = _pack_run(run_directory, scrubber)
    path = Path(output or f"{run_directory.id}.tar.gz")
    if not yes:
        if not sys.stdin.isatty():
            seen = "cannot ask for confirmation: stdin is not a terminal"
            raise AboardError(run_records.BUNDLE_ASK, seen, run=run_directory.id)
        click.confirm(f"write {escape_lines(str(path))}?", abort=True)
    write_bundle(run_directory.id, data, path)
    click.echo(f"{escape_lines(str(path))}  {format_size(len(data))}")
    click.secho(f"aboard why --bundle {quote_word(str(path))}    # diagnoses it", dim=True)


def _pack_run(run: RunDirectory, scrubber: SecretScrubber, *, err: bool = False) -> bytes:
    """The archive, after printing what is in it."""
    archive = pack_run(run, scrubber)
    for name, content in sorted(archive.parts.items()):
        click.echo(f"  {name:<20} {format_size(len(content)):>9}", err=err)
    for kind, count in archive.removed.items():
        click.echo(f"  removed: {count:,} × {kind}", err=err)
    return archive.data()
