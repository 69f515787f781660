"""The summary of a finished run: result, verdict, dropped output, and the next commands."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.launch.view.run_cost import format_cost
from aboard.commands.shared.copyable_commands import CopyableCommands
from aboard.commands.shared.findings.finding_lines import format_finding_lines
from aboard.commands.shared.findings.findings_view import FindingsView
from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.commands.shared.number_format import format_count
from aboard.commands.shared.status_marks import FINE, SEVERITY_MARKS, StatusMark
from aboard.core.evidence.verdict import SLOW
from aboard.core.exit_codes import EXIT_INTERRUPTED
from aboard.core.run.rank_phases import Phase
from aboard.core.run.recovery.recovery_policy import Action
from aboard.core.run.run_progress import RunProgress
from aboard.core.run.training_metrics import TrainingStatus
from aboard.core.slurm.job_ending import NOT_CONTINUED
from aboard.core.text.byte_sizes import format_size
from aboard.core.text.durations import format_duration
from aboard.diagnoses import Finding, Severity
from aboard.lazy_dataclass import dataclass

STOPPED = StatusMark(sign="!", style="bold yellow")
# Up to this many are named one by one.
MOST_NAMED = 5
# When a run failed, by the furthest phase that any rank reached.
_WHEN = {
    Phase.WAITING: "before any rank started",
    Phase.STARTED: "while ranks were running",
    Phase.PYTHON: "before importing torch",
    Phase.TORCH: "before connecting to the store",
    Phase.STORE: "before the process group was ready",
    Phase.GROUP: "before the first collective completed",
    Phase.COLLECTIVE: "before the first step completed",
    Phase.STEPS: "while training",
    Phase.DONE: "after all ranks finished",
}


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """How a run ended; the verdict is the first finding. `dropped` is bytes of lost output by who printed them.

    `command` starts the same run again. `continuation` says whether a further Slurm job continues it. `adapter` is
    whether the training was of a LoRA adapter. `reader` starts the commands that read its record.
    """

    progress: RunProgress
    findings: Sequence[Finding]
    exit_code: int
    directory: str
    command: str
    dropped: Mapping[str, int] = field(default_factory=dict)
    continuation: str = ""
    reader: str = "aboard"
    adapter: bool = False


class FinishedRunView:
    """Print it with `crop=False`, so that long commands are not cut."""

    def __init__(self, finished: FinishedRun) -> None:
        self._finished = finished

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ended, width = self._finished, options.max_width
        mark, headline = _format_outcome(ended)
        yield from wrap_labelled(Text(f"{mark.sign} ", style=mark.style), headline, width, style=mark.style)
        label, cost = _format_cost(ended.progress)
        if cost:
            yield from wrap_labelled(Text(f"  {label:<8}", style="dim"), cost, width)
        if ended.findings:
            yield ""
            yield FindingsView(ended.findings, in_full=False)
        for line in _format_restarts(ended.progress):
            yield from wrap_labelled(Text("  ", style="dim"), line, width)
        for line in _format_dropped(ended.dropped):
            yield from wrap_labelled(Text("! ", style="bold yellow"), line, width)
        if ended.continuation:
            yield from wrap_labelled(Text("  slurm   ", style="dim"), ended.continuation, width)
        yield CopyableCommands(_format_next_steps(ended), first=Text("  next    ", style="dim"))
        yield Text.assemble(("  record  ", "dim"), ended.directory, no_wrap=True, overflow="ignore")


def format_summary_lines(finished: FinishedRun) -> Iterator[str]:
    """The same as plain lines: findings as `aboard check` prints them, then dropped, next, record and done."""
    for finding in finished.findings:
        yield from format_finding_lines(finding)
    yield from _format_restarts(finished.progress)
    label, cost = _format_cost(finished.progress)
    if cost:
        yield f"{label} {cost}"
    for line in _format_dropped(finished.dropped):
        yield f"dropped {line}"
    if finished.continuation:
        yield f"slurm {finished.continuation}"
    yield from (f"next {line}" for line in _format_next_steps(finished).splitlines())
    yield f"record {finished.directory}"
    yield f"done: {_format_outcome(finished)[1]}"


def _format_cost(progress: RunProgress) -> tuple[str, str]:
    return format_cost(progress.spent, progress.goodput, restarts=progress.restarts)


def _format_outcome(finished: FinishedRun) -> tuple[StatusMark, str]:
    progress = finished.progress
    after = format_duration(progress.now - (progress.run_began or progress.began))
    if progress.restarts:
        after += f" with {format_count(progress.restarts, 'restart')}"
    ranks = format_count(progress.world, "rank")
    steps = f", {format_count(progress.step, 'step')}" if progress.step is not None else ""
    if progress.training is not None and "loss" in progress.training.metrics:
        steps = f", {format_count(progress.training.step, 'step')}, loss {progress.training.metrics['loss']:.4f}"
    if finished.exit_code == 0:
        return FINE, f"finished: {ranks}, {after}{steps}"
    code = f"exit code {finished.exit_code}"
    if not _has_failed(finished):
        why = progress.stopping or progress.finished or "no reason given"
        word = "slow" if finished.findings and finished.findings[0].code.startswith(SLOW) else "stuck"
        stuck = f"; until then it was {word} ({finished.findings[0].code})" if finished.findings else ""
        return STOPPED, f"stopped after {after}{steps}: {why}{stuck}; {code}"
    reached = f" at step {progress.step:,}" if progress.step is not None else f", {_WHEN[progress.phase]}"
    ended = f"; not restarted: {progress.recovering}" if progress.recovering else ""
    return SEVERITY_MARKS[Severity.BLOCK], f"failed after {after}{reached}; {ranks}, {code}{ended}"


def _format_restarts(progress: RunProgress) -> list[str]:
    """One line for each of the last restarts; the verdict on the last attempt is shown in full."""
    lines = [str(attempt) for attempt in progress.attempts if attempt.action != Action.STOP]
    earlier = len(lines) - MOST_NAMED
    if earlier <= 0:
        return lines
    return [f"{format_count(earlier, 'earlier restart')}: aboard why {progress.run}", *lines[-MOST_NAMED:]]


def _format_dropped(dropped: Mapping[str, int]) -> list[str]:
    """One line for each source of lost output, the largest first."""
    lost = sorted(((who, count) for who, count in dropped.items() if count), key=lambda each: -each[1])
    lines = [
        f"{format_size(count)} of output from {who} is not in the log because it exceeded the limits"
        for who, count in lost
    ]
    if len(lines) > MOST_NAMED:
        rest = lost[MOST_NAMED:]
        total = format_size(sum(count for _who, count in rest))
        return [
            *lines[:MOST_NAMED],
            f"{total} of output from {format_count(len(rest), 'other')} is not in the log either",
        ]
    return lines


def _format_next_steps(finished: FinishedRun) -> str:
    """The next commands: export, the log of the rank that the verdict names, the diagnosis, the same run again."""
    run, status, reader = finished.progress.run, finished.progress.training, finished.reader
    page = f"{reader} report {run}    # one page with charts"
    if finished.exit_code == 0:
        what = (
            "the LoRA adapter for PEFT; --merge writes a whole model"
            if finished.adapter
            else "the model for transformers"
        )
        export_line = f"{reader} export {run} --to trained    # exports {what}\n" if status else ""
        return f"{export_line}{page}\n{reader} logs {run}    # output of the ranks"
    again = f"{finished.command}    # {_describe_retry(status)}\n"
    if finished.continuation and not finished.continuation.startswith(NOT_CONTINUED):
        again = f"aboard status {run} --follow    # follows the job that continues it\n"
    if not _has_failed(finished):
        explain = f"{reader} why {run}    # what held it up\n" if finished.findings else ""
        return f"{explain}{again}{page}\n{reader} logs {run}    # output of the ranks"
    named = finished.findings[0].ranks[:1]
    rank = f" --rank {named[0]}" if named else ""
    who = f"rank {named[0]}" if named else "the ranks"
    inspect = f"{reader} logs {run}{rank}    # output of {who}\n{reader} why {run}    # the full diagnosis"
    return f"{inspect}\n{again}{page}" if status else f"{inspect}\n{page}"


def _has_failed(finished: FinishedRun) -> bool:
    """Whether it ended by itself; a run that the user stopped may have been stuck, which its findings say."""
    if finished.progress.stopping and finished.exit_code == EXIT_INTERRUPTED:
        return False
    return any(finding.severity is Severity.BLOCK for finding in finished.findings)


def _describe_retry(status: TrainingStatus | None) -> str:
    """What the same command does if it is run again."""
    if status is None:
        return "runs it again"
    return "starts over: no checkpoint is complete" if status.saved is None else f"continues from step {status.saved:,}"
