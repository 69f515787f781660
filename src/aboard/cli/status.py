"""`aboard status`."""

import asyncio
import os
import sys
from time import time

import click
from rich.console import Console

from aboard.flows.control import look, watch
from aboard.flows.status import Summary, summaries, summary
from aboard.record.places import RunDirectory
from aboard.record.runs import Runs
from aboard.ui.findings import FindingsView
from aboard.ui.launch_live import LaunchLive
from aboard.ui.launch_plain import PlainLaunch
from aboard.ui.roster import RosterView
from aboard.ui.status import RunLine, StatusView, status_lines

MOST = 20


@click.command()
@click.argument("run", required=False)
@click.option("--live", is_flag=True, help="Look on until the run ends; Ctrl-C ends the looking only.")
@click.option("-a", "--all", "every", is_flag=True, help=f"All runs, not the newest {MOST} only.")
def status(run: str | None, live: bool, every: bool) -> None:
    """Show the runs of yours, newest first, or how far one of them is.

    RUN is a run's name or the beginning of it. With --live and no RUN, the latest is meant.
    """
    runs = Runs.of(os.environ)
    console = Console(highlight=False)
    if run is None and not live:
        lines = [_line(each) for each in summaries(runs, len(runs.all()) if every else MOST)]
        if console.is_terminal:
            console.print(StatusView(lines), crop=False)
        else:
            sys.stdout.writelines(f"{line}\n" for line in status_lines(lines))
        return
    found = runs.find(run)
    if found.live:
        asyncio.run(_watch(found, console) if live else _look(found, console))
    else:
        told = summary(found)
        console.print(StatusView([_line(told)]), crop=False)
        if told.findings:
            console.print(FindingsView(told.findings, in_full=False), crop=False)


async def _look(run: RunDirectory, console: Console) -> None:
    console.print(RosterView(await look(run)), crop=False)


async def _watch(run: RunDirectory, console: Console) -> None:
    if not console.is_terminal:
        plain = PlainLaunch(click.echo)
        async for roster in watch(run):
            plain.update(roster)
            sys.stdout.flush()
        return
    view = LaunchLive(console)
    try:
        async for roster in watch(run):
            view.update(roster)
    finally:
        view.close()


def _line(told: Summary) -> RunLine:
    return RunLine(
        id=told.id,
        state=told.state,
        age=time() - told.began,
        world=told.world,
        step=told.step,
        verdict=told.findings[0].seen if told.findings else "",
    )
