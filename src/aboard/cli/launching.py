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
from aboard.cli.errand import Errand, typed_command
from aboard.cli.launch_view import LaunchView, Quiet, finished_lines, show_end, show_finished
from aboard.config.here import find_environment
from aboard.core.lease import Lease
from aboard.core.phase import Phase
from aboard.core.plan import Plan
from aboard.core.words import many
from aboard.diagnoses import AboardError
from aboard.flows.conductor import Conductor
from aboard.flows.launch import Launched, Look
from aboard.flows.session import Order, session
from aboard.flows.train_resume import TrainingFinished
from aboard.flows.watcher import Unwatched
from aboard.record.places import RunDirectory
from aboard.record.runs import Runs
from aboard.ui.hidden import hiding
from aboard.ui.plan_json import plan_json
from aboard.wires.fleet import Fleet

EXIT_ERROR = 3


async def held(errand: Errand, fleet: Fleet) -> int:
    """Runs it here, with a view of it; the exit code is the run's."""
    order = ordered(errand)
    console = Console(highlight=False)
    view = LaunchView(console, order.run)
    for note in errand.notes:
        view.say(f"note: {note}")
    try:
        launched, dropped = await session(order, watcher=view.watcher, viewer=view, fleet=fleet, on_look=view.looked)
    except TrainingFinished as finished:
        return show_finished(console, order.run, finished)
    finally:
        view.close()
    code = show_end(console, order.run, launched, dropped, command=errand.command)
    Runs(order.run.path.parent).prune()
    return code


def ordered(errand: Errand) -> Order:
    """The errand as flows know it, with a run directory of its own."""
    return Order(
        cluster=errand.cluster,
        request=errand.request,
        look=looked_at(errand),
        lease=errand.lease,
        run=Runs.of(os.environ).create(datetime.now(UTC).astimezone(), SystemRandom()),
        told=lambda plan: plan_document(plan, errand.lease),
        cargo=errand.cargo,
    )


def plan_document(plan: Plan, lease: Lease) -> dict[str, Any]:
    """The plan as it is recorded, with the lease and what was typed where: what a killed conductor can't tell."""
    typed = {"command": hiding(plan)(typed_command(sys.argv[1:])), "cwd": str(Path.cwd()), "lease": lease.seconds}
    return {**typed, **json.loads(plan_json(plan))}


def looked_at(errand: Errand) -> Look:
    """A training asks nodes for a little more than a launch does."""
    if errand.cargo is None:
        asked = software.subject(errand.request.program)
        subjects = tuple(asked if subject is software.SUBJECT else subject for subject in SUBJECTS)
    else:
        subjects = (*SUBJECTS, *errand.subjects)
    return Look(
        subjects=() if errand.check == "none" else subjects,
        quick=errand.check == "quick",
        environment=find_environment(os.environ),
    )


def detached(errand: Errand) -> int:
    """Runs it in a process of its own, and comes back when every rank has started, or with what stopped it."""
    order = ordered(errand)
    for note in errand.notes:
        click.echo(f"note: {note}", err=True)
    heard, tell = os.pipe()
    if os.fork() == 0:
        _background(order, errand.command, heard, tell)
    os.close(tell)
    with os.fdopen(heard, "rb") as said:
        code, _, words = said.read().decode("utf-8", "replace").partition("\n")
    click.echo(words, nl=False, err=code != "0")
    return int(code or 1)


def _background(order: Order, command: str, heard: int, tell: int) -> NoReturn:
    """The conductor's own process: apart from the terminal, and with a log for what it has to say."""
    code = 1
    try:
        os.close(heard)
        os.setsid()
        log = os.open(order.run.conductor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        leave_resource_tracker()
        start = _Start(order.run, tell)
        try:
            launched, dropped = asyncio.run(session(order, watcher=Unwatched(), viewer=Quiet(start.look)))
        except TrainingFinished as finished:
            code = show_finished(Console(highlight=False, width=120), order.run, finished)
            start.say(code, "".join(f"{line}\n" for line in finished_lines(finished, Runs(order.run.path.parent))))
        except AboardError as error:
            start.say(EXIT_ERROR, f"{error.seen} [{error.code}]\n    {error.fix}\n")
        else:
            console = Console(highlight=False, width=120)
            code = show_end(console, order.run, launched, dropped, command=command)
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


def started(ranks: int, nodes: int) -> str:
    """What is said when a run goes on in the background."""
    have, go = ("has", "goes") if ranks == 1 else ("have", "go")
    return f"{many(ranks, 'rank')} {have} started on {many(nodes, 'node')}, and {go} on without this terminal"


class _Start:
    """Tells the command that was typed how the start went, once: all ranks started, or what stopped them."""

    def __init__(self, run: RunDirectory, tell: int) -> None:
        self._run = run
        self._tell: int | None = tell

    def look(self, conductor: Conductor) -> None:
        plan, now = conductor.plan, conductor.run.generation
        if len(now.children) == plan.world and not now.phases[Phase.WAITING] and now.first_death is None:
            run = self._run.id
            follow = f"    aboard status {run} --live\n    aboard logs {run} --follow\n    aboard stop {run}\n"
            self.say(0, f"{run}: {started(plan.world, len(plan.parts))}\n{follow}")

    def over(self, launched: Launched, code: int) -> None:
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
