"""`aboard launch` and `aboard train` on a login node: show the Slurm job that the run was submitted as."""

import asyncio
from collections.abc import Sequence
from datetime import datetime

import click

from aboard.commands.launch.view.job_view import JobView
from aboard.commands.shared.printed_output import build_console, print_notes
from aboard.core.exit_codes import EXIT_INTERRUPTED
from aboard.core.slurm.job_state import JobPhase, describe_end
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.core.text.input_text import format_count
from aboard.engine.background_run import format_run_commands
from aboard.engine.slurm.follow_job import follow_run, refuse_failed_start
from aboard.engine.slurm.submit_job import SubmittedRun, format_script, submit_run


def print_batch_script(settings: SlurmSettings, argv: Sequence[str]) -> int:
    """Prints the script that the same command without --dry-run would submit."""
    click.echo(format_script(settings, argv, name=f"aboard-{argv[0]}").text, nl=False)
    return 0


def submit_and_follow(settings: SlurmSettings, argv: Sequence[str], *, detach: bool) -> int:
    """Submits the typed command as a job; returns at once if detached, or with the run's exit code."""
    submitted = asyncio.run(submit_run(settings, argv))
    run, job = submitted.run, submitted.job
    click.echo(f"{run.id}: submitted job {job.id} for {format_count(settings.nodes, 'node')}; script {job.script}")
    print_notes(submitted.notes)
    if detach:
        click.echo(format_run_commands(run.id), nl=False)
        return 0
    return _show_until_end(submitted, settings)


def _show_until_end(submitted: SubmittedRun, settings: SlurmSettings) -> int:
    run = submitted.run.id
    view = JobView(build_console(), run, clock=datetime.now)
    try:
        followed = asyncio.run(follow_run(submitted.run, submitted.job, view))
    except (KeyboardInterrupt, BrokenPipeError) as error:
        view.close()
        left = f"no longer following; the job is not affected:\n{format_run_commands(run)}".rstrip()
        click.echo(left, err=True) if isinstance(error, BrokenPipeError) else view.say(left)
        return EXIT_INTERRUPTED
    finally:
        view.close()
    if followed.status is None or followed.status.phase is not JobPhase.ENDED:
        view.say(
            f"Slurm no longer answers about job {followed.id}; the run may go on:\n{format_run_commands(run)}".rstrip()
        )
        return followed.exit_code
    refuse_failed_start(followed, settings)
    view.say(f"job {followed.id} {describe_end(followed.status)}")
    return followed.exit_code
