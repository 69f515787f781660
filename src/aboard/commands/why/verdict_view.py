"""The verdict on an active or a recorded run, and with --verbose what was ruled out."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from aboard.commands.shared.findings.findings_view import FindingsView
from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.core.evidence.verdict import Judgement, ReplayedJudgement, is_hang
from aboard.core.text.durations import format_duration
from aboard.diagnoses import Severity


class VerdictView:
    """Print it with `crop=False`, so that long commands are not cut."""

    def __init__(self, run: str, judgement: Judgement, *, verbose: bool) -> None:
        self._run = run
        self._judgement = judgement
        self._verbose = verbose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        why = self._judgement
        # What ranks do while the others have not waited too long for them is part of the work, and no verdict.
        notes = [finding for finding in why.findings if finding.severity is Severity.INFO]
        waits = [finding for finding in notes if is_hang(finding) and why.progress]
        findings = [finding for finding in why.findings if finding not in waits]
        if why.progress and (why.advancing or len(notes) == len(why.findings)):
            yield from wrap_labelled(Text(""), self._format_progress(), options.max_width, indent=2)
            for finding in (each for wait in waits for each in (wait, *wait.consequences)):
                yield from wrap_labelled(Text("  now   ", style="dim"), finding.seen, options.max_width)
        elif not findings:
            yield Text(f"{self._run}: nothing wrong was found{self._format_quiet()}")
        if findings:
            yield FindingsView(findings, in_full=True)
        if self._verbose:
            yield from _render_ruled_out(why, options.max_width)
        yield Text(f"queried the nodes in {why.seconds:.1f} s", style="dim")

    def _format_progress(self) -> str:
        state = "the run makes progress" if self._judgement.advancing else "nothing wrong was found"
        return f"{state}: {self._judgement.progress}{self._format_quiet()}"

    def _format_quiet(self) -> str:
        quiet = self._judgement.quiet
        return f"; last progress {format_duration(quiet)} ago" if quiet is not None else ""


class ReplayView:
    """A recorded run diagnosed again: the verdict, and the recorded one if it differs.

    `now` is the version of these rules. Print it with `crop=False`, so that long commands are not cut.
    """

    def __init__(self, replayed: ReplayedJudgement, *, now: str, verbose: bool) -> None:
        self._replayed = replayed
        self._now = now
        self._verbose = verbose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        replayed = self._replayed
        if replayed.changed:
            by = f" by aboard {replayed.version}" if replayed.version else ""
            yield Text(f"recorded verdict{by}:", style="bold")
            yield FindingsView(replayed.then, in_full=True)
            nothing = "" if replayed.why.findings else " nothing wrong was found"
            yield Text(f"verdict by aboard {self._now}:{nothing}", style="bold")
        yield FindingsView(replayed.why.findings, in_full=True)
        if self._verbose:
            yield from _render_ruled_out(replayed.why, options.max_width)


def _render_ruled_out(judgement: Judgement, width: int) -> Iterator[RenderableType]:
    """One line for each cause that was ruled out."""
    for each in judgement.ruled_out:
        yield from wrap_labelled(Text("  not   ", style="dim"), f"{each.what}: {each.why}", width)
