"""The end of a run: what it came to, its verdict with what followed from it, what was lost, and what to type next."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

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
# Named one by one while they are few.
MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """How a run ended: the verdict is the first finding. `dropped` is bytes that no log has, by who printed them.

    `command` is what was typed to start it.
    """

    roster: RunProgress
    findings: Sequence[Finding]
    exit_code: int
    directory: str
    command: str
    dropped: Mapping[str, int] = field(default_factory=dict)


class FinishedRunView:
    """Print it with `crop=False`: commands are as long as they are."""

    def __init__(self, ended: FinishedRun, *, verbose: bool = False) -> None:
        self._ended = ended
        self._verbose = verbose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ended, width = self._ended, options.max_width
        mark, headline = _format_outcome(ended)
        yield from wrap_labelled(Text(f"{mark.sign} ", style=mark.style), headline, width, style=mark.style)
        if ended.findings:
            yield ""
            yield FindingsView(ended.findings, in_full=self._verbose)
        for line in _format_dropped(ended.dropped):
            yield from wrap_labelled(Text("! ", style="bold yellow"), line, width)
        yield CopyableCommands(_format_next_steps(ended), first=Text("  next  ", style="dim"))
        yield Text.assemble(("  kept  ", "dim"), ended.directory, no_wrap=True, overflow="ignore")


def format_summary_lines(ended: FinishedRun) -> Iterator[str]:
    """The same for grep and for logs: findings as `aboard check` writes them, then dropped, next, kept, and done."""
    for finding in ended.findings:
        yield from format_finding_lines(finding)
    for line in _format_dropped(ended.dropped):
        yield f"dropped {line}"
    yield from (f"next {line}" for line in _format_next_steps(ended).splitlines())
    yield f"kept {ended.directory}"
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
        why = roster.stopping or roster.finished or "no reason was told"
        return STOPPED, f"stopped after {after}{steps}: {why}; {code}"
    reached = f" at step {roster.step:,}" if roster.step is not None else f", {roster.phase.word}"
    return SEVERITY_MARKS[Severity.BLOCK], f"failed after {after}{reached}; {ranks}, {code}"


def _format_dropped(dropped: Mapping[str, int]) -> list[str]:
    """Who lost most comes first."""
    lost = sorted(((who, count) for who, count in dropped.items() if count), key=lambda each: -each[1])
    lines = [f"{format_size(count)} that {who} printed is in no log: it was past the limits" for who, count in lost]
    if len(lines) > MOST_NAMED:
        rest = lost[MOST_NAMED:]
        total = format_size(sum(count for _who, count in rest))
        return [*lines[:MOST_NAMED], f"{total} that {format_count(len(rest), 'other')} printed is in no log either"]
    return lines


def _format_next_steps(ended: FinishedRun) -> str:
    """What to type: the model, the log of the rank that the verdict names, its story, and the same command again."""
    run, way = ended.roster.run, ended.roster.way
    if ended.exit_code == 0:
        export_line = f"aboard export {run} --to trained    # the model, as transformers loads it\n" if way else ""
        return f"{export_line}aboard logs {run}    # what the ranks printed"
    again = f"{ended.command}    # {_describe_retry(way)}"
    if not _has_failed(ended):
        return f"{again}\naboard logs {run}    # what they printed"
    named = ended.findings[0].ranks[:1]
    rank = f" --rank {named[0]}" if named else ""
    who = "it" if named else "they"
    look = f"aboard logs {run}{rank}    # what {who} printed\naboard why {run}    # the whole story"
    return f"{look}\n{again}" if way else look


def _has_failed(ended: FinishedRun) -> bool:
    return any(finding.severity is Severity.BLOCK for finding in ended.findings)


def _describe_retry(way: TrainingStatus | None) -> str:
    """What the same command does now."""
    if way is None:
        return "runs it again"
    return "starts over: no checkpoint is complete" if way.saved is None else f"continues from step {way.saved:,}"
