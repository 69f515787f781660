"""`aboard launch` and `aboard train` on a login node: submit the run as a Slurm job, and follow it."""

import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom

import click
from rich.console import Console

from aboard.config.allowed_files import list_confirmed_digests
from aboard.config.this_machine import find_node_python
from aboard.core.exit_codes import EXIT_INTERRUPTED
from aboard.core.slurm.batch_script import BatchCommand, describe_written_secret, format_batch_script
from aboard.core.slurm.conductor_command import ConductorCommand, build_conductor_command
from aboard.core.slurm.job_state import NO_OUTPUT_CODE, JobPhase, describe_end
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.core.text.input_text import format_count
from aboard.core.text.shell_quoting import quote_typed_words
from aboard.diagnoses import AboardError
from aboard.diagnoses.slurm import submission
from aboard.diagnoses.untrusted import escape_lines
from aboard.flows.slurm.follow_job import FollowedJob, follow_run
from aboard.flows.slurm.submit_job import check_request, find_request_note, submit_run
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import Runs
from aboard.record.slurm_job import SlurmJob
from aboard.ui.launch.job_view import JobView

# What bash returns for a program that it can't start, and the script for a directory that is missing.
_START_FAILURES = {126: b"exec: ", 127: b"exec: ", 3: b"cd: "}


def print_batch_script(settings: SlurmSettings, argv: Sequence[str]) -> int:
    """Prints the script that the same command without --dry-run would submit."""
    command = _build_command(argv)
    click.echo(format_script(settings, command, name=f"aboard-{argv[0]}"), nl=False)
    return 0


def check_submission(settings: SlurmSettings, argv: Sequence[str]) -> None:
    """Asks Slurm whether it would accept the job, before anything takes time."""
    script = format_script(settings, _build_command(argv), name="aboard-test")
    if (note := asyncio.run(check_request(script, os.environ))) is not None:
        click.echo(f"note: {escape_lines(note)}", err=True)


def submit_and_follow(settings: SlurmSettings, argv: Sequence[str], *, detach: bool) -> int:
    """Submits the typed command as a job; returns at once if detached, or with the run's exit code."""
    runs = Runs.of(os.environ)
    run = runs.create(datetime.now(UTC).astimezone(), SystemRandom())
    try:
        command = _build_command(argv, run=run.id, resubmits=settings.resubmit_limit)
        script = format_script(settings, command, name=run.id)
        job = asyncio.run(submit_run(run, script, {**os.environ, **command.secrets}))
    except AboardError:
        runs.remove(run)
        raise
    click.echo(f"{run.id}: submitted job {job.id} for {format_count(settings.nodes, 'node')}; script {job.script}")
    for note in (describe_written_secret(script), asyncio.run(find_request_note(settings))):
        if note is not None:
            click.echo(f"note: {escape_lines(note)}", err=True)
    if detach:
        click.echo(_format_commands(run), nl=False)
        return 0
    return _follow(run, job, settings)


def _build_command(argv: Sequence[str], *, run: str | None = None, resubmits: int = 0) -> ConductorCommand:
    return build_conductor_command(argv, run=run, resubmits=resubmits, allowed=list_confirmed_digests(os.environ))


def format_script(settings: SlurmSettings, command: ConductorCommand, *, name: str) -> str:
    """The script that runs the command with this Python, in this directory."""
    state = os.environ.get("XDG_STATE_HOME", "")
    batch = BatchCommand(
        # -P: the files of the working directory are not modules of Aboard.
        argv=[find_node_python(os.environ), "-P", "-m", "aboard", *command.words],
        directory=str(Path.cwd()),
        exports={"XDG_STATE_HOME": state} if state.startswith("/") else {},
        secrets=tuple(command.secrets),
    )
    return format_batch_script(settings, batch, name=name)


def _follow(run: RunDirectory, job: SlurmJob, settings: SlurmSettings) -> int:
    console = Console(highlight=False)
    view = JobView(console, run.id, clock=datetime.now)
    try:
        followed = asyncio.run(follow_run(run, job, view))
    except KeyboardInterrupt:
        view.close()
        view.say(f"no longer following; the job is not affected:\n{_format_commands(run)}".rstrip())
        return EXIT_INTERRUPTED
    finally:
        view.close()
    if followed.status is None or followed.status.phase is not JobPhase.ENDED:
        view.say(
            f"Slurm no longer answers about job {followed.id}; the run may go on:\n{_format_commands(run)}".rstrip()
        )
        return followed.exit_code
    _refuse_failed_start(followed, settings)
    view.say(f"job {followed.id} {describe_end(followed.status)}")
    return followed.exit_code


def _format_commands(run: RunDirectory) -> str:
    return f"    aboard status {run.id} --live\n    aboard logs {run.id} --follow\n    aboard stop {run.id}\n"


def _refuse_failed_start(followed: FollowedJob, settings: SlurmSettings) -> None:
    """Explains a script that ended before Aboard started: the node lacks its directory or its Python."""
    mark = _START_FAILURES.get(followed.exit_code)
    if followed.exit_code != NO_OUTPUT_CODE and (mark is None or mark not in followed.last_output):
        return
    partition = [] if settings.partition is None else [f"--partition={settings.partition}"]
    srun = quote_typed_words(["srun", *partition])
    seen = f"job {followed.id} ended before Aboard started"
    raise AboardError(submission.SCRIPT_START, seen, srun=srun, directory=Path.cwd(), python=sys.executable)
