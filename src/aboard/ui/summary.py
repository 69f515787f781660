"""The end of a run: what it came to, its verdict with what followed from it, what was lost, and what to type next."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.core.duration import span
from aboard.core.metrics import Way
from aboard.core.roster import Roster
from aboard.core.size import size
from aboard.diagnoses import Finding, Severity
from aboard.lazy import dataclass
from aboard.ui.commands import Commands
from aboard.ui.figures import many
from aboard.ui.findings import FindingsView
from aboard.ui.hanging import hanging
from aboard.ui.marks import FINE, OF_SEVERITY, Mark
from aboard.ui.plain import finding_lines

STOPPED = Mark(sign="!", style="bold yellow")
# Named one by one while they are few.
NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run ended: the verdict is the first finding. `dropped` is bytes that no log has, by who printed them.

    `command` is what was typed to start it.
    """

    roster: Roster
    findings: Sequence[Finding]
    exit_code: int
    directory: str
    command: str
    dropped: Mapping[str, int] = field(default_factory=dict)


class SummaryView:
    """Print it with `crop=False`: commands are as long as they are."""

    def __init__(self, ended: Ended, *, verbose: bool = False) -> None:
        self._ended = ended
        self._verbose = verbose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ended, width = self._ended, options.max_width
        mark, said = _outcome(ended)
        yield from hanging(Text(f"{mark.sign} ", style=mark.style), said, width, style=mark.style)
        if ended.findings:
            yield ""
            yield FindingsView(ended.findings, in_full=self._verbose)
        for line in _dropped(ended.dropped):
            yield from hanging(Text("! ", style="bold yellow"), line, width)
        yield Commands(_next(ended), first=Text("  next  ", style="dim"))
        yield Text.assemble(("  kept  ", "dim"), ended.directory, no_wrap=True, overflow="ignore")


def summary_lines(ended: Ended) -> Iterator[str]:
    """The same for grep and for logs: findings as `aboard check` writes them, then dropped, next, kept, and done."""
    for finding in ended.findings:
        yield from finding_lines(finding)
    for line in _dropped(ended.dropped):
        yield f"dropped {line}"
    yield from (f"next {line}" for line in _next(ended).splitlines())
    yield f"kept {ended.directory}"
    yield f"done: {_outcome(ended)[1]}"


def _outcome(ended: Ended) -> tuple[Mark, str]:
    roster = ended.roster
    after = span(roster.now - roster.began)
    ranks = many(roster.world, "rank")
    steps = f", {many(roster.step, 'step')}" if roster.step is not None else ""
    if roster.way is not None and "loss" in roster.way.metrics:
        steps = f", {many(roster.way.step, 'step')}, loss {roster.way.metrics['loss']:.4f}"
    if ended.exit_code == 0:
        return FINE, f"finished: {ranks}, {after}{steps}"
    code = f"exit code {ended.exit_code}"
    if not _failed(ended):
        why = roster.stopping or roster.finished or "no reason was told"
        return STOPPED, f"stopped after {after}{steps}: {why}; {code}"
    reached = f" at step {roster.step:,}" if roster.step is not None else f", {roster.phase.word}"
    return OF_SEVERITY[Severity.BLOCK], f"failed after {after}{reached}; {ranks}, {code}"


def _dropped(dropped: Mapping[str, int]) -> list[str]:
    """Who lost most comes first."""
    lost = sorted(((who, count) for who, count in dropped.items() if count), key=lambda each: -each[1])
    lines = [f"{size(count)} that {who} printed is in no log: it was past the limits" for who, count in lost]
    if len(lines) > NAMED:
        rest = lost[NAMED:]
        total = size(sum(count for _who, count in rest))
        return [*lines[:NAMED], f"{total} that {many(len(rest), 'other')} printed is in no log either"]
    return lines


def _next(ended: Ended) -> str:
    """What to type: the model, the log of the rank that the verdict names, its story, and the same command again."""
    run, way = ended.roster.run, ended.roster.way
    if ended.exit_code == 0:
        made = f"aboard export {run} --to trained    # the model, as transformers loads it\n" if way else ""
        return f"{made}aboard logs {run}    # what the ranks printed"
    again = f"{ended.command}    # {_again(way)}"
    if not _failed(ended):
        return f"{again}\naboard logs {run}    # what they printed"
    named = ended.findings[0].ranks[:1]
    rank = f" --rank {named[0]}" if named else ""
    who = "it" if named else "they"
    look = f"aboard logs {run}{rank}    # what {who} printed\naboard why {run}    # the whole story"
    return f"{look}\n{again}" if way else look


def _failed(ended: Ended) -> bool:
    return any(finding.severity is Severity.BLOCK for finding in ended.findings)


def _again(way: Way | None) -> str:
    """What the same command does now."""
    if way is None:
        return "runs it again"
    return "starts over: no checkpoint is complete" if way.saved is None else f"continues from step {way.saved:,}"
