"""The list of runs with their state and verdict."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.text import Text

from aboard.commands.shared.bounded_height import BoundedHeight
from aboard.core.text.durations import format_duration
from aboard.engine.records.status import RunSummary

GAP = "  "
STYLES = {
    "running": "bold cyan",
    "pending": "cyan",
    "finished": "green",
    "failed": "bold red",
    "stopped": "yellow",
    "interrupted": "yellow",
    "lost": "bold red",
    "refused": "bold red",
}


class RunListView:
    """One line per run; on a narrow terminal the verdict goes on a second line."""

    def __init__(self, runs: Sequence[RunSummary], now: float) -> None:
        self._runs = runs
        self._now = now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._runs:
            yield Text("no runs yet; start one with `aboard launch -- train.py`", style="dim")
            return
        yield BoundedHeight(Group(*self._lines(options.max_width)), 2 * len(self._runs) + 1)

    def _lines(self, width: int) -> Iterator[Text]:
        heads = ("run", "state", "started", "ranks", "step")
        cells = [_format_cells(run, self._now) for run in self._runs]
        widths = [max(cell_len(row[place]) for row in (heads, *cells)) for place in range(len(heads))]
        yield _render_line(heads, widths, "verdict", state="dim", style="dim")
        for run, row in zip(self._runs, cells, strict=True):
            verdict = " ".join(run.verdict.split())
            whole = _render_line(row, widths, verdict, state=STYLES.get(run.state, ""))
            if whole.cell_len <= width:
                yield whole
            else:
                yield _render_line(row, widths, "", state=STYLES.get(run.state, ""))
                yield Text(f"{GAP}{verdict}", style="dim", no_wrap=True, overflow="ellipsis")


def format_run_lines(runs: Sequence[RunSummary], now: float) -> Iterator[str]:
    """For grep and cut: a header, then one run per line, six tab-separated columns, `-` for unknown."""
    yield "run\tstate\tage_seconds\tranks\tstep\tverdict"
    for run in runs:
        known = (
            run.id,
            run.state,
            f"{now - run.began:.0f}",
            run.world,
            run.step,
            " ".join(run.verdict.split()) or None,
        )
        yield "\t".join("-" if each is None else str(each) for each in known)


def _format_cells(run: RunSummary, now: float) -> tuple[str, ...]:
    world = "" if run.world is None else f"{run.world:,}"
    step = "" if run.step is None else f"{run.step:,}"
    return (run.id, run.state, f"{format_duration(now - run.began)} ago", world, step)


def _render_line(cells: Sequence[str], widths: Sequence[int], verdict: str, *, state: str, style: str = "") -> Text:
    """The run and its state left-aligned, the figures right-aligned."""
    line = Text(f"{cells[0].ljust(widths[0])}{GAP}", style=style, no_wrap=True, overflow="ellipsis")
    line.append(cells[1].ljust(widths[1]), state)
    line.append("".join(GAP + cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)))
    line.append(f"{GAP}{verdict}")
    line.rstrip()
    return line
