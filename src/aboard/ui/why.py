"""The answer to `aboard why` for a run that lives: the verdict, and for those who ask, what it isn't."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from aboard.core.duration import span
from aboard.core.verdict import Why
from aboard.ui.findings import FindingsView
from aboard.ui.hanging import hanging


class WhyView:
    """Print it with `crop=False`: commands are as long as they are."""

    def __init__(self, run: str, why: Why, *, verbose: bool) -> None:
        self._run = run
        self._why = why
        self._verbose = verbose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        why = self._why
        if why.findings:
            yield FindingsView(why.findings, in_full=True)
        else:
            quiet = f"; its last sign of progress is {span(why.quiet)} old" if why.quiet is not None else ""
            yield Text(f"{self._run}: nothing is wrong that could be seen{quiet}")
        if self._verbose:
            yield from ruled_out(why, options.max_width)
        yield Text(f"asked the nodes in {why.seconds:.1f} s", style="dim")


def ruled_out(why: Why, width: int) -> Iterator[RenderableType]:
    """What it isn't, a line each."""
    for each in why.ruled_out:
        yield from hanging(Text("  not   ", style="dim"), f"{each.what}: {each.why}", width)
