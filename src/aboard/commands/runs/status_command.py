"""`aboard status`."""

import asyncio
import os
import sys
from collections.abc import Sequence
from time import sleep, time

import click
from rich.console import Console

from aboard.commands.launch.slurm_forwarding import find_slurm_runs, forward_to_batch_host
from aboard.commands.launch.view.live_view import LaunchLiveView
from aboard.commands.launch.view.plain_lines import PlainLaunchWriter
from aboard.commands.launch.view.roster_view import RosterView
from aboard.commands.launch.view.run_cost import format_cost
from aboard.commands.runs.run_list import RunListView, format_run_lines
from aboard.commands.shared.json_output import dump_json
from aboard.commands.shared.options.completion import complete_runs
from aboard.commands.shared.printed_output import build_console, end_at_closed_pipe, print_findings, print_report
from aboard.core.run.run_progress import RunProgress, describe_attempt
from aboard.core.run.run_state import GenerationEnd
from aboard.engine.conductor_client import ask_progress, watch_progress
from aboard.engine.records.status import (
    RunSummary,
    StatusDocument,
    list_summaries,
    summarize_job_run,
    summarize_progress,
    summarize_run,
)
from aboard.engine.slurm.job_runs import JobRun
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import Runs

MAX_RUNS = 20
POLL_SECONDS = 0.2


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("-f", "--follow", "--live", "live", is_flag=True, help="Follow until the run ends; Ctrl-C ends the view.")
@click.option("-a", "--all", "every", is_flag=True, help=f"List all runs, not only the newest {MAX_RUNS}.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with --follow, one line per change.")
def status(run: str | None, live: bool, every: bool, as_json: bool) -> None:
    """List your runs, newest first, or show the progress of one.

    RUN is a run's name or a prefix of it. With --follow, the default is the latest run.
    """
    runs = Runs.of(os.environ)
    console = build_console()
    if run is None and not live:
        shown = runs.all() if every else runs.all()[:MAX_RUNS]
        summaries = tuple(list_summaries(shown, find_slurm_runs(shown)))
        if as_json:
            click.echo(dump_json(StatusDocument(runs=summaries)))
            return
        print_report(console, RunListView(summaries, time()), format_run_lines(summaries, time()))
        return
    run_directory = runs.find(run)
    where = forward_to_batch_host(run_directory, run, must_be_here=False)
    # During the preflight check, the conductor does not serve requests yet.
    while live and run_directory.live and not run_directory.socket.exists():
        sleep(POLL_SECONDS)
    if as_json:
        with end_at_closed_pipe():
            _print_json(run_directory, where, follow=live)
    elif run_directory.live and run_directory.socket.exists():
        asyncio.run(_follow_progress(run_directory, console) if live else _show_progress(run_directory, console))
    else:
        run_summary = summarize_run(run_directory) if where is None else summarize_job_run(where)
        console.print(RunListView([run_summary], time()), crop=False)
        _print_attempts(run_summary.attempts)
        label, cost = format_cost(run_summary.spent, run_summary.goodput, restarts=max(0, run_summary.generation - 1))
        if cost:
            click.echo(f"{label} {cost}")
        print_findings(console, run_summary.findings)


def _print_json(run: RunDirectory, job: JobRun | None, *, follow: bool) -> None:
    """With `follow`, a line for each change of anything but times and loads; the last one is of the finished record."""
    live = run.live and run.socket.exists()
    if live and follow:
        asyncio.run(_print_changes(run))
        while run.live:
            sleep(POLL_SECONDS)
        job = None
    if live and not follow:
        _print_document(summarize_progress(run, asyncio.run(ask_progress(run))))
    else:
        _print_document(summarize_run(run) if job is None else summarize_job_run(job), lines=follow)


async def _print_changes(run: RunDirectory) -> None:
    shown = None
    async for progress in watch_progress(run):
        if (key := _select_stable(progress)) != shown:
            _print_document(summarize_progress(run, progress), lines=True)
            shown = key


def _print_document(run_summary: RunSummary, *, lines: bool = False) -> None:
    click.echo(dump_json(StatusDocument(runs=(run_summary,)), lines=lines))


def _select_stable(progress: RunProgress) -> tuple[object, ...]:
    return (
        (progress.generation, progress.phase, progress.ranks_in_phase, progress.step, len(progress.attempts)),
        (progress.restarting, progress.recovering, progress.stopping, progress.finished),
        (progress.notices, progress.uncopied, progress.spares, progress.unsent, progress.stall and progress.stall.key),
        [(each.trouble, each.ranks) for each in progress.missing],
        [(row.node, row.state) for row in progress.rows],
    )


def _print_attempts(attempts: Sequence[GenerationEnd]) -> None:
    for attempt in attempts:
        click.echo(describe_attempt(attempt))


async def _show_progress(run: RunDirectory, console: Console) -> None:
    progress = await ask_progress(run)
    console.print(RosterView(progress), crop=False)
    _print_attempts(progress.attempts)


async def _follow_progress(run: RunDirectory, console: Console) -> None:
    if not console.is_terminal:
        plain = PlainLaunchWriter(click.echo)
        async for progress in watch_progress(run):
            plain.update(progress)
            sys.stdout.flush()
        return
    view = LaunchLiveView(console)
    try:
        async for progress in watch_progress(run):
            view.update(progress)
    finally:
        view.close()
