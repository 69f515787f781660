"""Runs a launch at this terminal or in the background."""

import asyncio
import json
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom
from typing import Any, NoReturn

import click
from rich.console import Console

from aboard.checks.software import subject as software
from aboard.checks.subjects import SUBJECTS
from aboard.cli.runs.launch_view import LaunchView, SilentView, format_finished_lines, show_end, show_finished
from aboard.cli.runs.start_launch import ResolvedLaunch, format_typed_command
from aboard.config.this_machine import find_environment
from aboard.core.exit_codes import EXIT_ERROR
from aboard.core.plan.plan import Plan
from aboard.core.run.lease import Lease
from aboard.core.run.rank_phases import Phase
from aboard.core.text.input_text import format_count
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import escape_lines
from aboard.flows.check.check_observer import NullCheckObserver
from aboard.flows.launch.conductor import Conductor
from aboard.flows.launch.launch_run import LaunchResult, Preflight
from aboard.flows.launch.launch_session import LaunchSpec, run_launch_session
from aboard.flows.slurm.continue_job import requeue_job
from aboard.flows.slurm.job_conductor import JobWatch, record_own_job
from aboard.flows.slurm.watch_job import VIEWER_SECONDS
from aboard.flows.train.check_resume import TrainingFinished
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import Runs
from aboard.transport.node_dialer import NodeDialer
from aboard.ui.launch.plan_json import format_plan_json
from aboard.ui.launch.secret_redaction import build_redactor

# Far more than what is said before ranks start, and less than a pipe holds.
MOST_LOG = 16 * 1024


async def run_attached(arguments: ResolvedLaunch, dialer: NodeDialer) -> int:
    """Runs the launch at this terminal and returns the run's exit code."""
    spec = build_launch_spec(arguments)
    console = Console(highlight=False)
    view = LaunchView(console, spec.run)
    for note in arguments.notes:
        view.say(f"note: {escape_lines(note)}")
    try:
        launched, dropped = await run_launch_session(
            spec, watcher=view.watcher, viewer=view, dialer=dialer, on_report=view.show_preflight
        )
    except TrainingFinished as finished:
        return show_finished(console, spec.run, finished)
    finally:
        view.close()
    code = show_end(console, spec.run, launched, dropped, command=arguments.command)
    Runs(spec.run.path.parent).prune()
    if spec.watch is not None:
        # Slurm ends this process as soon as it requeues the job, and ends the steps of viewers with this process.
        sys.stdout.flush()
        await asyncio.sleep(VIEWER_SECONDS if arguments.run is not None else 0)
        await requeue_job(spec.watch)
    return code


def build_launch_spec(arguments: ResolvedLaunch) -> LaunchSpec:
    """Builds the launch spec and creates its run directory, or opens it for a run that was submitted to Slurm."""
    runs = Runs.of(os.environ)
    if arguments.run is None:
        run = runs.create(datetime.now(UTC).astimezone(), SystemRandom())
    else:
        run = runs.open_or_create(arguments.run)
    job = record_own_job(run, os.environ)
    return LaunchSpec(
        cluster=arguments.cluster,
        request=arguments.request,
        preflight=build_preflight(arguments),
        lease=arguments.lease,
        run=run,
        encode_plan=lambda plan: build_plan_document(plan, arguments.lease),
        payload=arguments.cargo,
        watch=None if job is None else JobWatch(job, os.environ),
        resubmits=arguments.resubmits,
    )


def build_plan_document(plan: Plan, lease: Lease) -> dict[str, Any]:
    """The plan for the record, with the lease, the command and the directory, in case the conductor is killed."""
    typed = {
        "command": build_redactor(plan)(format_typed_command(sys.argv[1:])),
        "cwd": str(Path.cwd()),
        "lease": lease.seconds,
    }
    return {**typed, **json.loads(format_plan_json(plan))}


def build_preflight(arguments: ResolvedLaunch) -> Preflight:
    """The subjects to check; a training adds its own."""
    if arguments.cargo is None:
        software_subject = software.build_subject(arguments.request.program)
        subjects = tuple(software_subject if subject is software.SUBJECT else subject for subject in SUBJECTS)
    else:
        subjects = (*SUBJECTS, *arguments.subjects)
    return Preflight(
        subjects=() if arguments.check == "none" else subjects,
        quick=arguments.check == "quick",
        environment=find_environment(os.environ),
    )


def run_detached(arguments: ResolvedLaunch) -> int:
    """Runs the conductor in the background; returns when every rank has started, or when the launch failed."""
    spec = build_launch_spec(arguments)
    for note in arguments.notes:
        click.echo(f"note: {escape_lines(note)}", err=True)
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        _run_in_background(spec, arguments.command, read_end, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        code, _, text = pipe.read().decode("utf-8", "replace").partition("\n")
    click.echo(text, nl=False, err=code != "0")
    return int(code or 1)


def _run_in_background(spec: LaunchSpec, command: str, read_end: int, write_end: int) -> NoReturn:
    """The background process: no terminal, output to the conductor log."""
    code = 1
    try:
        os.close(read_end)
        os.setsid()
        log = os.open(spec.run.conductor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        leave_resource_tracker()
        start = StartReporter(spec.run, write_end)
        try:
            launched, dropped = asyncio.run(
                run_launch_session(spec, watcher=NullCheckObserver(), viewer=SilentView(start.update))
            )
        except TrainingFinished as finished:
            code = show_finished(Console(highlight=False, width=120), spec.run, finished)
            start.report(
                code, "".join(f"{line}\n" for line in format_finished_lines(finished, Runs(spec.run.path.parent)))
            )
        except AboardError as error:
            start.report(EXIT_ERROR, f"{error.seen} [{error.code}]\n    {error.fix}\n")
        else:
            console = Console(highlight=False, width=120)
            code = show_end(console, spec.run, launched, dropped, command=command)
            start.finish(launched, code)
    finally:
        sys.stdout.flush()
        os._exit(code)


def leave_resource_tracker() -> None:
    """Closes the pipe to multiprocessing's resource tracker, which lives as long as any process holds that pipe.

    The tracker inherited the terminal's streams: `aboard train --detach | cat` would block until the training ends.
    """
    module = sys.modules.get("multiprocessing.resource_tracker")
    tracker = getattr(module, "_resource_tracker", None)
    if tracker is not None and tracker._fd is not None:  # noqa: SLF001 - there is no public API for this
        os.close(tracker._fd)  # noqa: SLF001 - as above
        tracker._fd = None  # noqa: SLF001 - as above


def format_started(ranks: int, nodes: int) -> str:
    """The message for a run that continues in the background."""
    return f"started {format_count(ranks, 'rank')} on {format_count(nodes, 'node')}, running in the background"


class StartReporter:
    """Reports once to the foreground command how the start went: all ranks started, or what stopped them."""

    def __init__(self, run: RunDirectory, pipe: int) -> None:
        self._run = run
        self._pipe: int | None = pipe

    def update(self, conductor: Conductor) -> None:
        plan, now = conductor.plan, conductor.run.generation
        if len(now.children) == plan.world and not now.phases[Phase.WAITING] and now.first_death is None:
            run = self._run.id
            follow = f"    aboard status {run} --live\n    aboard logs {run} --follow\n    aboard stop {run}\n"
            self.report(0, f"{self._read_log()}{run}: {format_started(plan.world, len(plan.parts))}\n{follow}")

    def _read_log(self) -> str:
        """What has been said before the ranks started, such as the memory that a training needs."""
        sys.stdout.flush()
        with suppress(OSError), self._run.conductor_log.open("rb") as log:
            return log.read(MOST_LOG).decode("utf-8", "replace")
        return ""

    def finish(self, launched: LaunchResult, code: int) -> None:
        if launched.outcome is not None:
            findings = list(launched.outcome.findings)
        else:
            findings = [*launched.refused] or (launched.report.findings if launched.report else [])
        lines = [f"{finding.severity.word} {finding.code}: {finding.seen}\n    {finding.fix}" for finding in findings]
        self.report(code, "\n".join(lines or [f"{self._run.id} has finished"]) + "\n")

    def report(self, code: int, text: str) -> None:
        if self._pipe is not None:
            with suppress(OSError):
                os.write(self._pipe, f"{code}\n{text}".encode())
            os.close(self._pipe)
            self._pipe = None
