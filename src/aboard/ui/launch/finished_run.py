"""The summary of a finished run: result, verdict, dropped output, and the next commands."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.core.evidence.verdict import SLOW
from aboard.core.exit_codes import EXIT_INTERRUPTED
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_progress import RunProgress
from aboard.core.run.training_metrics import TrainingStatus
from aboard.core.text.byte_sizes import format_size
from aboard.core.text.durations import format_duration
from aboard.diagnoses import Finding, Severity
from aboard.lazy_dataclass import dataclass
from aboard.ui.check.plain_lines import format_finding_lines
from aboard.ui.copyable_commands import CopyableCommands
from aboard.ui.findings_view import FindingsView
from aboard.ui.labelled_text import wrap_labelled
from aboard.ui.number_format import format_count
from aboard.ui.status_marks import FINE, SEVERITY_MARKS, StatusMark

STOPPED = StatusMark(sign="!", style="bold yellow")
# The exit code of a run that the user stopped.
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
    whether the training was of a LoRA adapter.
    """

    roster: RunProgress
    findings: Sequence[Finding]
    exit_code: int
    directory: str
    command: str
    dropped: Mapping[str, int] = field(default_factory=dict)
    continuation: str = ""
    adapter: bool = False


class FinishedRunView:
    """Print it with `crop=False`, so that long commands are not cut."""

    def __init__(self, ended: FinishedRun) -> None:
        self._ended = ended

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ended, width = self._ended, options.max_width
        mark, headline = _format_outcome(ended)
        yield from wrap_labelled(Text(f"{mark.sign} ", style=mark.style), headline, width, style=mark.style)
        if ended.findings:
            yield ""
            yield FindingsView(ended.findings, in_full=False)
        for line in _format_dropped(ended.dropped):
            yield from wrap_labelled(Text("! ", style="bold yellow"), line, width)
        if ended.continuation:
            yield from wrap_labelled(Text("  slurm   ", style="dim"), ended.continuation, width)
        yield CopyableCommands(_format_next_steps(ended), first=Text("  next    ", style="dim"))
        yield Text.assemble(("  record  ", "dim"), ended.directory, no_wrap=True, overflow="ignore")


def format_summary_lines(ended: FinishedRun) -> Iterator[str]:
    """The same as plain lines: findings as `aboard check` prints them, then dropped, next, record and done."""
    for finding in ended.findings:
        yield from format_finding_lines(finding)
    for line in _format_dropped(ended.dropped):
        yield f"dropped {line}"
    if ended.continuation:
        yield f"slurm {ended.continuation}"
    yield from (f"next {line}" for line in _format_next_steps(ended).splitlines())
    yield f"record {ended.directory}"
    yield f"done: {_format_outcome(ended)[1]}"


def _format_outcome(ended: FinishedRun) -> tuple[StatusMark, str]:
    roster = ended.roster
    after = format_duration(roster.now - roster.began)
    ranks = format_count(roster.world, "rank")
    steps = f", {format_count(roster.step, 'step')}" if roster.step is not None else ""
    if roster.way is not None and "loss" in roster.way.metrics:
        steps = f", {format_count(roster.way.step, 'step')}, loss {roster.way.metrics['loss']:.4f}"
    if ended.exit_code == 0:
        return FINE, f"finished: {ranks}, {after}{steps}"
    code = f"exit code {ended.exit_code}"
    if not _has_failed(ended):
        why = roster.stopping or roster.finished or "no reason given"
        word = "slow" if ended.findings and ended.findings[0].code.startswith(SLOW) else "stuck"
        stuck = f"; until then it was {word} ({ended.findings[0].code})" if ended.findings else ""
        return STOPPED, f"stopped after {after}{steps}: {why}{stuck}; {code}"
    reached = f" at step {roster.step:,}" if roster.step is not None else f", {_WHEN[roster.phase]}"
    return SEVERITY_MARKS[Severity.BLOCK], f"failed after {after}{reached}; {ranks}, {code}"


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


def _format_next_steps(ended: FinishedRun) -> str:
    """The next commands: export, the log of the rank that the verdict names, the diagnosis, the same run again."""
    run, way = ended.roster.run, ended.roster.way
    if ended.exit_code == 0:
        what = (
            "the LoRA adapter for PEFT; --merge writes a whole model" if ended.adapter else "the model for transformers"
        )
        export_line = f"aboard export {run} --to trained    # exports {what}\n" if way else ""
        return f"{export_line}aboard logs {run}    # output of the ranks"
    again = f"{ended.command}    # {_describe_retry(way)}"
    if not _has_failed(ended):
        explain = f"aboard why {run}    # what held it up\n" if ended.findings else ""
        return f"{explain}{again}\naboard logs {run}    # output of the ranks"
    named = ended.findings[0].ranks[:1]
    rank = f" --rank {named[0]}" if named else ""
    who = f"rank {named[0]}" if named else "the ranks"
    inspect = f"aboard logs {run}{rank}    # output of {who}\naboard why {run}    # the full diagnosis"
    return f"{inspect}\n{again}" if way else inspect


def _has_failed(ended: FinishedRun) -> bool:
    """Whether it ended by itself; a run that the user stopped may have been stuck, which its findings say."""
    if ended.roster.stopping and ended.exit_code == EXIT_INTERRUPTED:
        return False
    return any(finding.severity is Severity.BLOCK for finding in ended.findings)


def _describe_retry(way: TrainingStatus | None) -> str:
    """What the same command does if it is run again."""
    if way is None:
        return "runs it again"
    return "starts over: no checkpoint is complete" if way.saved is None else f"continues from step {way.saved:,}"
