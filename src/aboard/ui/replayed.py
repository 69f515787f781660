"""A run that is over, or somebody else's, judged again: the verdict, and what was said then if that was another."""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.core.verdict import Replayed
from aboard.ui.findings import FindingsView
from aboard.ui.why import ruled_out


class ReplayedView:
    """`now` is the version of these rules. Print it with `crop=False`: commands are as long as they are."""

    def __init__(self, told: Replayed, *, now: str, verbose: bool) -> None:
        self._told = told
        self._now = now
        self._verbose = verbose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        told = self._told
        if told.changed:
            by = f" by aboard {told.version}" if told.version else ""
            yield Text(f"said then{by}:", style="bold")
            yield FindingsView(told.then, in_full=True)
            nothing = "" if told.why.findings else " nothing is wrong that could be seen"
            yield Text(f"said now by aboard {self._now}:{nothing}", style="bold")
        yield FindingsView(told.why.findings, in_full=True)
        if self._verbose:
            yield from ruled_out(told.why, options.max_width)
