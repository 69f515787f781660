"""The verdict on an active run, and with --verbose what was ruled out."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from aboard.core.evidence.verdict import Judgement
from aboard.core.text.durations import format_duration
from aboard.ui.findings_view import FindingsView
from aboard.ui.labelled_text import wrap_labelled


class VerdictView:
    """Print it with `crop=False`, so that long commands are not cut."""

    def __init__(self, run: str, why: Judgement, *, verbose: bool) -> None:
        self._run = run
        self._why = why
        self._verbose = verbose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        why = self._why
        if why.findings:
            yield FindingsView(why.findings, in_full=True)
        else:
            quiet = f"; last progress {format_duration(why.quiet)} ago" if why.quiet is not None else ""
            yield Text(f"{self._run}: nothing wrong was found{quiet}")
        if self._verbose:
            yield from render_ruled_out(why, options.max_width)
        yield Text(f"queried the nodes in {why.seconds:.1f} s", style="dim")


def render_ruled_out(why: Judgement, width: int) -> Iterator[RenderableType]:
    """One line for each cause that was ruled out."""
    for each in why.ruled_out:
        yield from wrap_labelled(Text("  not   ", style="dim"), f"{each.what}: {each.why}", width)
