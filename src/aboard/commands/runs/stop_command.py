"""`aboard stop`."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING

import click

from aboard.commands.launch.slurm_forwarding import find_slurm_runs
from aboard.commands.shared.options.completion import complete_runs
from aboard.diagnoses import AboardError, format_shell, join_lines
from aboard.diagnoses.usage import commands
from aboard.engine.conductor_client import ask_stop
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import Runs

if TYPE_CHECKING:
    from aboard.engine.slurm.job_runs import JobRun

WAIT_SECONDS = 120.0
POLL_SECONDS = 0.1


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--now", is_flag=True, help="Skip the grace period, like a second Ctrl-C.")
def stop(run: str | None, now: bool) -> None:
    """Stop a run: every rank gets SIGTERM, then SIGKILL after the grace period; nothing is left behind.

    The job of a run that waits in Slurm's queue is cancelled, and so is one whose conductor does not reply.

    RUN is a run's name or a prefix of it; it may be omitted if only one run is active.
    """
    runs = Runs.of(os.environ)
    listed = runs.all() if run is None else [runs.find(run)]
    jobs = find_slurm_runs(listed)
    run_directory = listed[0] if run is not None else _choose_run(listed, jobs)
    where = jobs.get(run_directory.id)
    if where is not None and (where.is_elsewhere or where.is_waiting):
        from aboard.engine.slurm.stop_job import stop_job_run  # noqa: PLC0415 - only for jobs

        click.echo(asyncio.run(stop_job_run(where, now=now)))
        return
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


def _choose_run(runs: Sequence[RunDirectory], jobs: "Mapping[str, JobRun]") -> RunDirectory:
    """The only active run."""
    active = [run for run in runs if run.live or (run.id in jobs and jobs[run.id].is_active)]
    if not active:
        raise AboardError(commands.STOP_NONE, "none of your runs is active on this machine")
    if len(active) > 1:
        each = (format_shell("aboard stop {run}", run=run.id) for run in active)
        raise AboardError(commands.STOP_WHICH, f"{len(active)} runs are active", stop=join_lines(*each))
    return active[0]
