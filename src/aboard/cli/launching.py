"""From an order to a run: at this terminal, in the background, or conducted from another host."""

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import click
from rich.console import Console

from aboard.cli.launch_view import LaunchView, Quiet, show_end
from aboard.core import shell
from aboard.core.errors import AboardError, InputError, Problem
from aboard.core.phase import Phase
from aboard.flows.conductor import Conductor
from aboard.flows.launch import Launched
from aboard.flows.session import Order, session
from aboard.flows.watcher import Unwatched
from aboard.record.places import RunDirectory
from aboard.record.runs import Runs

EXIT_ERROR = 3


class Launching(click.Command):
    """Takes what stands behind `--` as it is: it is the command's, and no option of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, command = args, list[str]()
        if "--" in args:
            at = args.index("--")
            before, command = args[:at], args[at + 1 :]
        rest = super().parse_args(ctx, list(before))
        ctx.params["command"] = tuple(command)
        if not command and not ctx.resilient_parsing:
            script = next((word for word in before if word.endswith(".py")), "train.py")
            seen = "there is no command behind --"
            problem = Problem(where="aboard launch", seen=seen, fix=f"aboard launch -- {script} …")
            raise InputError("launch-command", [problem])
        return rest


def held(order: Order) -> int:
    """Runs it here, with a view of it; the exit code is the run's."""
    console = Console(highlight=False)
    view = LaunchView(console, order.run)
    for note in order.notes:
        view.say(f"note: {note}")
    try:
        launched, dropped = asyncio.run(session(order, watcher=view.watcher, viewer=view, on_look=view.looked))
    finally:
        view.close()
    code = show_end(console, order.run, launched, dropped)
    Runs(order.run.path.parent).prune()
    return code


def detached(order: Order) -> int:
    """Runs it in a process of its own, and comes back when every rank has started, or with what stopped it."""
    heard, tell = os.pipe()
    if os.fork() == 0:
        _background(order, heard, tell)
    os.close(tell)
    with os.fdopen(heard, "rb") as said:
        code, _, words = said.read().decode("utf-8", "replace").partition("\n")
    click.echo(words, nl=False, err=code != "0")
    return int(code or 1)


def elsewhere(host: str, argv: list[str]) -> NoReturn:
    """Types the same command on another host, where it goes on in the background."""
    line = f"cd {shell.quote(str(Path.cwd()))} && exec {shell.join(['aboard', *_without_on(argv)])}"
    os.execvp("ssh", ["ssh", "-o", "BatchMode=yes", "--", host, line])  # noqa: S606 - no shell of ours is wanted


def _without_on(argv: list[str]) -> list[str]:
    """The same words, with --detach instead of --on; what stands behind `--` is the command's."""
    end = argv.index("--")
    verb, *before = argv[:end]
    words: list[str] = []
    while before:
        word = before.pop(0)
        if word == "--on":
            before.pop(0)
        elif not word.startswith("--on="):
            words.append(word)
    return [verb, "--detach", *words, *argv[end:]]


def _background(order: Order, heard: int, tell: int) -> NoReturn:
    """The conductor's own process: apart from the terminal, and with a log for what it has to say."""
    code = 1
    try:
        os.close(heard)
        os.setsid()
        log = os.open(order.run.conductor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        start = _Start(order.run, tell)
        try:
            launched, dropped = asyncio.run(session(order, watcher=Unwatched(), viewer=Quiet(start.look)))
        except AboardError as error:
            start.say(EXIT_ERROR, f"{error.seen} [{error.code}]\n    {error.fix}\n")
        else:
            code = show_end(Console(highlight=False, width=120), order.run, launched, dropped)
            start.over(launched, code)
    finally:
        sys.stdout.flush()
        os._exit(code)


class _Start:
    """Tells the command that was typed how the start went, once: all ranks started, or what stopped them."""

    def __init__(self, run: RunDirectory, tell: int) -> None:
        self._run = run
        self._tell: int | None = tell

    def look(self, conductor: Conductor) -> None:
        plan, now = conductor.plan, conductor.run.generation
        if len(now.children) == plan.world and not now.phases[Phase.WAITING] and now.first_death is None:
            run = self._run.id
            self.say(
                0,
                f"{run}: {plan.world} ranks have started on {len(plan.parts)} nodes, and go on without this terminal\n"
                f"    aboard status {run} --live\n    aboard logs {run} --follow\n    aboard stop {run}\n",
            )

    def over(self, launched: Launched, code: int) -> None:
        if launched.outcome is not None:
            findings = list(launched.outcome.findings)
        else:
            findings = launched.report.findings if launched.report else []
        lines = [f"{finding.severity.word} {finding.code}: {finding.seen}\n    {finding.fix}" for finding in findings]
        self.say(code, "\n".join(lines or [f"{self._run.id} has finished"]) + "\n")

    def say(self, code: int, words: str) -> None:
        if self._tell is not None:
            with suppress(OSError):
                os.write(self._tell, f"{code}\n{words}".encode())
            os.close(self._tell)
            self._tell = None
