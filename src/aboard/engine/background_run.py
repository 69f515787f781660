"""Runs a launch in a background process; the foreground command returns once all ranks have started, or one failed."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from aboard.core.run.event_kinds import Recovering, SpareChanged, Unsent
from aboard.core.run.events import Event
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_state import WHY_CHARS, describe_spare, describe_unsent
from aboard.core.text.input_text import format_count
from aboard.diagnoses.untrusted import escape_lines
from aboard.engine.conductor.conductor import Conductor
from aboard.engine.launch_run import LaunchResult
from aboard.record.run_directory import RunDirectory

# Far more than what is said before ranks start, and less than a pipe holds.
MOST_LOG = 16 * 1024


class StartReporter:
    """Reports once to the foreground command how the start of the run went: all ranks started, or what stopped them."""

    def __init__(self, run: RunDirectory, pipe: int) -> None:
        self._run = run
        self._pipe: int | None = pipe
        self._conductor: Conductor | None = None

    def began(self, conductor: Conductor) -> None:
        self._conductor = conductor

    def event(self, event: Event) -> None:
        self.tick(event.at)
        match event.body:
            case Recovering(failure=failure, seen=seen, decision=decision):
                text = f"{failure.code}: {escape_lines(seen.raw())}\nrecovery: {decision.why}"
            case SpareChanged(why=why):
                text = f"warning: {describe_spare(event.node, why.visible(WHY_CHARS))}"
            case Unsent() as unsent:
                text = describe_unsent(unsent)
            case _:
                return
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def tick(self, now: float) -> None:
        if self._conductor is None or self._pipe is None:
            return
        plan, generation = self._conductor.plan, self._conductor.run.generation
        all_started = len(generation.children) == plan.world and not generation.phases[Phase.WAITING]
        if all_started and generation.first_death is None:
            started = format_started(plan.world, len(plan.parts))
            self.report(0, f"{self._read_log()}{self._run.id}: {started}\n{format_run_commands(self._run.id)}")

    def _read_log(self) -> str:
        """What has been said before the ranks started, such as the memory that a training run needs."""
        sys.stdout.flush()
        with suppress(OSError), self._run.conductor_log.open("rb") as log:
            return log.read(MOST_LOG).decode("utf-8", "replace")
        return ""

    def finish(self, result: LaunchResult, code: int) -> None:
        findings = result.reasons if result.outcome is None else result.findings
        lines = [f"{finding.severity.word} {finding.code}: {finding.seen}\n    {finding.fix}" for finding in findings]
        self.report(code, "\n".join(lines or [f"{self._run.id} has finished"]) + "\n")

    def report(self, code: int, text: str) -> None:
        if self._pipe is not None:
            with suppress(OSError):
                os.write(self._pipe, f"{code}\n{text}".encode())
            os.close(self._pipe)
            self._pipe = None


def fork_into_background(run: RunDirectory) -> StartReporter | tuple[int, str]:
    """In a process that goes on without this one, its reporter; here, the exit code and text that it reports first."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.close(read_end)
        return StartReporter(run, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        code, _, text = pipe.read().decode("utf-8", "replace").partition("\n")
    return int(code or 1), text


@contextmanager
def leave_terminal(run: RunDirectory) -> Iterator[None]:
    """What the background process does: no terminal, output to the conductor log. The process ends with it."""
    code = 1
    try:
        os.setsid()
        log = os.open(run.conductor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(fd, target)
        leave_resource_tracker()
        yield
        code = 0
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


def format_run_commands(run: str) -> str:
    """The commands about a run that has no terminal."""
    return f"    aboard status {run} --live\n    aboard logs {run} --follow\n    aboard stop {run}\n"
