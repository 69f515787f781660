"""`aboard report`."""

import json
import os
import sys
from pathlib import Path

import click

from aboard.commands.launch.slurm_forwarding import read_from_batch_host
from aboard.commands.report.build_report import MOST_RUNS, ReportOptions, build_report
from aboard.commands.shared.options.completion import complete_runs
from aboard.commands.shared.page.render_page import render_page
from aboard.commands.shared.page.write_page import list_users, write_page
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_lines
from aboard.diagnoses.usage import run_records
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import Runs

STDOUT = "-"


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]…", shell_complete=complete_runs)
@click.option("-o", "--output", metavar="FILE", help="The page to write, or - for stdout; default: ./RUN.html.")
@click.option(
    "--compare", is_flag=True, help=f"Show up to {MOST_RUNS} RUNs on the same axes, and where settings differ."
)
@click.option("--no-output", is_flag=True, help="Leave out what ranks printed.")
@click.option("--data", is_flag=True, help="Print the data of the page as JSON, and write nothing.")
def report(runs: tuple[str, ...], output: str | None, compare: bool, no_output: bool, data: bool) -> None:
    """Write one page about a RUN: verdicts, curves, where the time went, slow ranks, nodes, last output.

    The page is a single HTML file, readable only by you, that any browser opens without a network. An active run is
    shown as far as it is; run the command again for a newer page. The default is the newest run.

    Keys, tokens, passwords, home directories and user names are removed, as from a bundle. Host names, paths, arguments
    and settings stay: review the page before you send it.
    """
    found = _choose_runs(runs, compare=compare)
    name = found[0].id if len(found) == 1 else f"compare-{found[0].id}"
    words = ["--no-output"] if no_output else []
    forwarded = None
    if len(found) == 1:
        target = ["--data"] if data else ["--output", STDOUT]
        forwarded = read_from_batch_host(found[0], ["report", found[0].id, *target, *words])
    if forwarded is None:
        content = build_report(found, ReportOptions(scrub=SecretScrubber(users=list_users()), output=not no_output))
        text = json.dumps(content) + "\n" if data else render_page(content, f"{name} – Aboard")
        forwarded = text.encode("utf-8", "backslashreplace")
    if data or output == STDOUT:
        sys.stdout.buffer.write(forwarded)
        return
    path = Path(output or f"{name}.html")
    write_page(path, forwarded, run=found[0].id)
    click.echo(f"{escape_lines(str(path))}  {format_size(len(forwarded))}")
    click.secho("open it in a browser; it holds host names, paths and arguments", dim=True)


def _choose_runs(names: tuple[str, ...], *, compare: bool) -> list[RunDirectory]:
    if len(names) > 1 and not compare:
        seen = f"more than one run was given: {len(names)}"
        fix = run_records.REPORT_RUNS.fix("compare", runs=names)
    elif len(names) > MOST_RUNS:
        seen = f"{len(names)} runs were given"
        fix = run_records.REPORT_RUNS.fix("fewer")
    else:
        known = Runs.of(os.environ)
        found = [known.find(name) for name in names or (None,)]
        return list({run.id: run for run in found}.values())
    raise InputError(run_records.REPORT_RUNS, [Problem(where="aboard report", seen=seen, fix=fix)])
