"""From an errand to a run: at this terminal, or in the background."""

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

from aboard.checks import SUBJECTS, software
from aboard.cli.runs.launch_arguments import LaunchArguments, format_typed_command
from aboard.cli.runs.launch_view import LaunchView, SilentView, format_finished_lines, show_end, show_finished
from aboard.config.this_machine import find_environment
from aboard.core.plan.plan import Plan
from aboard.core.run.lease import Lease
from aboard.core.run.rank_phases import Phase
from aboard.core.text.input_text import format_count
from aboard.diagnoses import AboardError
from aboard.flows.check.check_observer import NullCheckObserver
from aboard.flows.launch.conductor import Conductor
from aboard.flows.launch.launch_run import LaunchResult, Preflight
from aboard.flows.launch.launch_session import LaunchSpec, run_launch_session
from aboard.flows.train.check_resume import TrainingFinished
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import Runs
from aboard.transport.node_dialer import NodeDialer
from aboard.ui.launch.plan_json import format_plan_json
from aboard.ui.launch.secret_redaction import build_redactor

EXIT_ERROR = 3


async def run_attached(arguments: LaunchArguments, fleet: NodeDialer) -> int:
    """Runs it here, with a view of it; the exit code is the run's."""
    spec = build_launch_spec(arguments)
    console = Console(highlight=False)
    view = LaunchView(console, spec.run)
    for note in arguments.notes:
        view.say(f"note: {note}")
    try:
        launched, dropped = await run_launch_session(
            spec, watcher=view.watcher, viewer=view, fleet=fleet, on_look=view.looked
        )
    except TrainingFinished as finished:
        return show_finished(console, spec.run, finished)
    finally:
        view.close()
    code = show_end(console, spec.run, launched, dropped, command=arguments.command)
    Runs(spec.run.path.parent).prune()
    return code


def build_launch_spec(arguments: LaunchArguments) -> LaunchSpec:
    """The errand as flows know it, with a run directory of its own."""
    return LaunchSpec(
        cluster=arguments.cluster,
        request=arguments.request,
        look=build_preflight(arguments),
        lease=arguments.lease,
        run=Runs.of(os.environ).create(datetime.now(UTC).astimezone(), SystemRandom()),
        told=lambda plan: build_plan_document(plan, arguments.lease),
        cargo=arguments.cargo,
    )


def build_plan_document(plan: Plan, lease: Lease) -> dict[str, Any]:
    """The plan as it is recorded, with the lease and what was typed where: what a killed conductor can't tell."""
    typed = {
        "command": build_redactor(plan)(format_typed_command(sys.argv[1:])),
        "cwd": str(Path.cwd()),
        "lease": lease.seconds,
    }
    return {**typed, **json.loads(format_plan_json(plan))}


def build_preflight(arguments: LaunchArguments) -> Preflight:
    """A training asks nodes for a little more than a launch does."""
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


def run_detached(arguments: LaunchArguments) -> int:
    """Runs it in a process of its own, and comes back when every rank has started, or with what stopped it."""
    spec = build_launch_spec(arguments)
    for note in arguments.notes:
        click.echo(f"note: {note}", err=True)
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        _run_in_background(spec, arguments.command, read_end, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        code, _, text = pipe.read().decode("utf-8", "replace").partition("\n")
    click.echo(text, nl=False, err=code != "0")
    return int(code or 1)


def _run_in_background(spec: LaunchSpec, command: str, read_end: int, write_end: int) -> NoReturn:
    """The conductor's own process: apart from the terminal, and with a log for what it has to say."""
    code = 1
    try:
        os.close(read_end)
        os.setsid()
        log = os.open(spec.run.conductor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        leave_resource_tracker()
        start = _StartReporter(spec.run, write_end)
        try:
            launched, dropped = asyncio.run(
                run_launch_session(spec, watcher=NullCheckObserver(), viewer=SilentView(start.look))
            )
        except TrainingFinished as finished:
            code = show_finished(Console(highlight=False, width=120), spec.run, finished)
            start.say(
                code, "".join(f"{line}\n" for line in format_finished_lines(finished, Runs(spec.run.path.parent)))
            )
        except AboardError as error:
            start.say(EXIT_ERROR, f"{error.seen} [{error.code}]\n    {error.fix}\n")
        else:
            console = Console(highlight=False, width=120)
            code = show_end(console, spec.run, launched, dropped, command=command)
            start.over(launched, code)
    finally:
        sys.stdout.flush()
        os._exit(code)


def leave_resource_tracker() -> None:
    """Lets go of multiprocessing's helper process, which lives as long as any process holds its pipe.

    It inherited the terminal's streams: `aboard train --detach | cat` would wait for the end of the training.
    """
    module = sys.modules.get("multiprocessing.resource_tracker")
    tracker = getattr(module, "_resource_tracker", None)
    if tracker is not None and tracker._fd is not None:  # noqa: SLF001 - it has no public way to be left alone
        os.close(tracker._fd)  # noqa: SLF001 - as above
        tracker._fd = None  # noqa: SLF001 - as above


def format_started(ranks: int, nodes: int) -> str:
    """What is said when a run goes on in the background."""
    have, go = ("has", "goes") if ranks == 1 else ("have", "go")
    return (
        f"{format_count(ranks, 'rank')} {have} started on {format_count(nodes, 'node')}, and {go} on without this"
        " terminal"
    )


class _StartReporter:
    """Tells the command that was typed how the start went, once: all ranks started, or what stopped them."""

    def __init__(self, run: RunDirectory, tell: int) -> None:
        self._run = run
        self._tell: int | None = tell

    def look(self, conductor: Conductor) -> None:
        plan, now = conductor.plan, conductor.run.generation
        if len(now.children) == plan.world and not now.phases[Phase.WAITING] and now.first_death is None:
            run = self._run.id
            follow = f"    aboard status {run} --live\n    aboard logs {run} --follow\n    aboard stop {run}\n"
            self.say(0, f"{run}: {format_started(plan.world, len(plan.parts))}\n{follow}")

    def over(self, launched: LaunchResult, code: int) -> None:
        if launched.outcome is not None:
            findings = list(launched.outcome.findings)
        else:
            findings = [*launched.refused] or (launched.report.findings if launched.report else [])
        lines = [f"{finding.severity.word} {finding.code}: {finding.seen}\n    {finding.fix}" for finding in findings]
        self.say(code, "\n".join(lines or [f"{self._run.id} has finished"]) + "\n")

    def say(self, code: int, words: str) -> None:
        if self._tell is not None:
            with suppress(OSError):
                os.write(self._tell, f"{code}\n{words}".encode())
            os.close(self._tell)
            self._tell = None
