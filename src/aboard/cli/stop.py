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
POLL_SECONDS = 0.1


@click.command()
@click.argument("run", required=False)
@click.option("--now", is_flag=True, help="Skip the grace period, like a second Ctrl-C.")
def stop(run: str | None, now: bool) -> None:
    """Stop a run: every rank gets SIGTERM, then SIGKILL after the grace period; nothing is left behind.

    RUN is a run's name or a prefix of it; it may be omitted if only one run is active.
    """
    run_directory = _find_run(Runs.of(os.environ), run)
    asyncio.run(_stop_run(run_directory, now=now))
    click.echo(f"{run_directory.id} has stopped")


async def _stop_run(run: RunDirectory, *, now: bool) -> None:
    await ask_stop(run, "aboard stop", now=now)
    deadline = monotonic() + WAIT_SECONDS
    while run.live:
        if monotonic() > deadline:
            seen = f"{run.id} did not stop within {WAIT_SECONDS:g} s"
            raise AboardError(commands.STOP_SLOW, seen, run=run.id)
        await asyncio.sleep(POLL_SECONDS)


def _find_run(runs: Runs, name: str | None) -> RunDirectory:
    if name is not None:
        return runs.find(name)
    live = [run for run in runs.all() if run.live]
    if not live:
        raise AboardError(commands.STOP_NONE, "none of your runs is active on this machine")
    if len(live) > 1:
        names = ", ".join(run.id for run in live)
        raise AboardError(commands.STOP_WHICH, f"several runs are active: {names}", run=live[0].id)
    return live[0]
