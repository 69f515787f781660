"""`aboard stop`."""

import asyncio
import os
from time import monotonic

import click

from aboard.diagnoses import AboardError
from aboard.diagnoses.usage import commands
from aboard.flows.launch.control_socket import ask_stop
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import Runs

WAIT_SECONDS = 120.0
LOOK_SECONDS = 0.1


@click.command()
@click.argument("run", required=False)
@click.option("--now", is_flag=True, help="Without the grace: as a second Ctrl-C would.")
def stop(run: str | None, now: bool) -> None:
    """End a run: every rank gets SIGTERM and the grace, then SIGKILL; nothing is left behind.

    RUN is a run's name or the beginning of it; without one, the only one that runs is meant.
    """
    run_directory = _find_run(Runs.of(os.environ), run)
    asyncio.run(_stop_run(run_directory, now=now))
    click.echo(f"{run_directory.id} has ended")


async def _stop_run(run: RunDirectory, *, now: bool) -> None:
    await ask_stop(run, "aboard stop", now=now)
    deadline = monotonic() + WAIT_SECONDS
    while run.live:
        if monotonic() > deadline:
            seen = f"{run.id} did not end within {WAIT_SECONDS:g} s"
            raise AboardError(commands.STOP_SLOW, seen, run=run.id)
        await asyncio.sleep(LOOK_SECONDS)


def _find_run(runs: Runs, name: str | None) -> RunDirectory:
    if name is not None:
        return runs.find(name)
    live = [run for run in runs.all() if run.live]
    if not live:
        raise AboardError(commands.STOP_NONE, "no run of yours is under way from here")
    if len(live) > 1:
        names = ", ".join(run.id for run in live)
        raise AboardError(commands.STOP_WHICH, f"several runs are under way: {names}", run=live[0].id)
    return live[0]
