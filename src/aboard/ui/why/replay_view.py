"""A recorded run diagnosed again: the verdict, and the recorded one if it differs."""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.core.evidence.verdict import ReplayedJudgement
from aboard.ui.findings_view import FindingsView
from aboard.ui.why.verdict_view import render_ruled_out


class ReplayView:
    """`now` is the version of these rules. Print it with `crop=False`, so that long commands are not cut."""

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
            yield from render_ruled_out(replayed.why, options.max_width)
