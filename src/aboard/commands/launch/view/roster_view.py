"""The live view of a run: progress, missing ranks, the rank table, the last lines of a rank."""

import re
from collections.abc import Iterator

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from aboard.commands.launch.view.missing_ranks import MissingGroup, group_missing
from aboard.commands.launch.view.roster_table import RosterTable
from aboard.commands.launch.view.run_cost import format_cost, render_recovery
from aboard.commands.launch.view.training_progress import TrainingProgressView
from aboard.commands.shared.bounded_height import BoundedHeight
from aboard.commands.shared.labelled_text import wrap_labelled
from aboard.commands.shared.number_format import format_count, format_pace, format_range
from aboard.commands.shared.progress_bar import render_bar
from aboard.core.cluster.node_sets import fold_names
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_progress import MissingReason, RunProgress
from aboard.core.text.byte_sizes import format_size
from aboard.core.text.durations import format_duration
from aboard.diagnoses.untrusted import escape_text

# Lines left for the output above and the prompt.
SPARE = 3
# Shorter waits are not worth showing.
SHOW_AFTER_SECONDS = 1.0
# Up to this many nodes get a row each, if that leaves a third of the screen.
ONE_BY_ONE = 20
HEADINGS = 9
BAR = 40
RULE = "─"
# The heading's maximum width: on a very wide terminal its ends would be too far apart.
HEADING = 110
MOST_NOTICES = 2
TAIL = 6
# A verdict has at most this many lines; those after the first are indented.
STALL_LINES, INDENT, LONG_WORD = 3, 7, 16
TAIL_AT_LEAST = 3
# Lines that a training run's own view leaves for the nodes.
TRAINING_AT_LEAST = 4
# Characters of one text, before it is cut to the terminal's width.
LONGEST = 1000

_SITE = re.compile(r"(?<![^\s;,])[^\s;,]+:(?:\d+|\?\?\?) in [^\s;,]+")
_DIRECTORIES = re.compile(r"(?<![^\s(])/(?:[^\s/:]+/)+(?=[^\s/])")
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")


class RosterView:
    """Never higher than the terminal."""

    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        screen = options.height or options.max_height
        height = max(1, screen - SPARE)
        yield BoundedHeight(Group(*self._parts(options.max_width, height, screen)), height)

    def _parts(self, width: int, height: int, screen: int) -> Iterator[RenderableType]:
        progress = self._progress
        heading = list(_render_heading(progress, width))
        yield from heading
        rows = len(heading)
        heading = render_recovery(progress, width)
        label, cost = format_cost(progress.spent, progress.goodput, restarts=progress.restarts)
        if cost:
            heading.append(Text.assemble((f"{label:<10}", "dim"), cost))
        yield from map(_render_line, heading)
        room = height - rows - len(heading)
        if progress.training is not None and room > TRAINING_AT_LEAST:
            training = TrainingProgressView(progress.training, lines=min(room - TRAINING_AT_LEAST, room // 2))
            yield training
            room -= training.height
        stall = _render_stall(progress, width)
        yield from stall
        room -= len(stall)
        shown = (*progress.notices, *progress.uncopied, *progress.spares, *progress.unsent)[:MOST_NOTICES]
        notices = [_render_line(Text(f"! {notice}", style="yellow")) for notice in shown]
        yield from notices
        room -= len(notices)
        missing = _render_missing(progress, max(1, room // 3))
        yield from missing
        room -= len(missing)
        few = len(progress.rows) <= min(ONE_BY_ONE, screen * 2 // 3 - HEADINGS)
        tail = min(len(progress.tail), TAIL_AT_LEAST) + bool(progress.tail) if room > 2 * TAIL_AT_LEAST else 0
        if room - tail > 1 and not progress.finished:
            table = RosterTable(
                progress, width=width, lines=room - tail, one_by_one=few and len(progress.rows) < room - tail
            )
            yield table
            room -= table.height
        yield from _render_tail(progress, min(TAIL, room - 1))


def _render_heading(progress: RunProgress, width: int) -> Iterator[Text]:
    """The run, its duration, its progress, and what it uses."""
    width = min(width, HEADING)
    again = f"attempt {progress.generation}, " if progress.generation > 1 else ""
    who = f"{format_count(progress.world, 'rank')} on {format_count(len(progress.rows), 'node')}"
    right = f" {again}{who}, {format_duration(progress.now - progress.began)}"
    left = Text.assemble((f"{RULE * 2} ", "dim"), (progress.run, "bold"), "  ")
    room = width - left.cell_len - cell_len(right) - 2
    left.append(_shorten_path(escape_text(progress.program, LONGEST), room) if room > 0 else "")
    # A rule separates it from the ranks' output right above.
    left.append(f" {RULE * max(1, width - 1 - left.cell_len - cell_len(right))}", style="dim")
    yield _render_line(left.append(right))
    yield _render_line(_render_phase(progress, width))
    if len(progress.rows) > 1 and (used := _format_usage(progress, width)):
        yield _render_line(Text(used, style="dim"))


def _shorten_path(path: str, room: int) -> str:
    """Cuts the beginning of a path: the script's name is at the end."""
    return path if cell_len(path) <= room else "…" + path[len(path) - room + 1 :]


def _render_phase(progress: RunProgress, width: int) -> Text:
    if progress.finished or progress.stopping:
        message = progress.finished or f"stopping: {progress.stopping}"
        return Text(escape_text(message, LONGEST), style="bold" if progress.finished else "bold red")
    complete = progress.ranks_in_phase == progress.world
    count = f"{progress.ranks_in_phase:,}/{progress.world:,} ranks"
    line = Text.assemble(
        (progress.phase.label, "bold green" if progress.phase is Phase.STEPS and complete else "bold"), "  "
    )
    compiling = sum(row.compiling for row in progress.rows)
    if compiling:
        return line.append(f"compiling on {compiling:,}/{progress.world:,} ranks")
    if progress.step is not None:
        # Our trainer reports its step on lines of its own.
        parts = [] if progress.training is not None else [f"step {progress.step:,}"]
        parts += [] if progress.step_seconds is None else [format_pace(progress.step_seconds)]
        line.append(" · ".join(parts))
        return line if complete else line.append(f"  {count}", style="yellow")
    line.append(f"{count}  ", style="green" if complete else "yellow")
    cells = min(BAR, width - line.cell_len)
    if cells >= BAR // 4 and progress.phase < Phase.STEPS:
        line.append_text(render_bar(_compute_progress(progress), cells))
    return line


def _compute_progress(progress: RunProgress) -> float:
    """The average progress of all ranks towards the first step."""
    total = sum(min(phase, Phase.STEPS) * count for row in progress.rows for phase, count in row.phases)
    return total / (Phase.STEPS * max(1, progress.world))


def _format_usage(progress: RunProgress, width: int) -> str:
    """The resources that all ranks use, with ranges over the nodes; parts that do not fit are left out."""
    rows = progress.rows
    cores = [row.cpu for row in rows if row.cpu is not None]
    resident = [row.rss for row in rows if row.rss is not None]
    shares = format_range((None if row.memory is None else 100 * row.memory for row in rows), "{:.0f}")
    load = format_range((row.load for row in rows), "{:.1f}")
    parts = [
        f"{format_count(round(sum(cores)), 'core')} busy" if cores else "",
        f"memory {shares} % full" if shares else "",
        f"load {load}" if load else "",
        f"{format_size(sum(resident))} used by ranks" if resident else "",
    ]
    line = ""
    for part in filter(None, parts):
        longer = f"{line} · {part}" if line else part
        line = longer if cell_len(longer) <= width else line
    return line


def _render_stall(progress: RunProgress, width: int) -> list[Text]:
    """The verdict on a stalled run and the fix; a wait that is part of the work is only a note."""
    stall = progress.stall
    if stall is None or progress.stopping or progress.finished:
        return []
    if not stall.grave:
        return [_render_line(Text(f"note  {_shorten_to_site(stall.seen, width - len('note  '))}", style="dim"))]
    head = Text.assemble((f"{stall.word}  ", "bold red"), (f"{stall.code}  ", "dim"))
    # Three lines, whose ends are not filled.
    seen = _shorten_to_site(stall.seen, max(width, STALL_LINES * (width - INDENT - LONG_WORD) - head.cell_len))
    lines = list(wrap_labelled(head, seen, width, indent=INDENT, style="bold"))[:STALL_LINES]
    then = [_render_line(Text(f"  then {stall.ends}, unless it makes progress", style="dim"))] if stall.ends else []
    return [*map(_render_line, lines), _render_line(Text.assemble(("  fix  ", "dim"), stall.fix)), *then]


def _shorten_to_site(text: str, room: int) -> str:
    """Shortens a line but keeps the location of a rank (`train.py:42 in step`).

    Directories go first, then the text after the location, then the words right before it.
    """
    if cell_len(text) <= room:
        return text
    text = _DIRECTORIES.sub("…/", text)
    site = _SITE.search(text)
    if site is None or cell_len(text) <= room:
        return text
    before, after = text[: site.start()], "…" if text[site.end() :] else ""
    rest = room - cell_len(site[0]) - len(after)
    if cell_len(before) <= rest:
        # The text after it is cut at the end of the line, like any other.
        return text
    words = set_cell_size(before, max(0, rest - len("… "))).rpartition(" ")[0]
    return f"{words}… {site[0]}{after}"


def _render_missing(progress: RunProgress, most: int) -> list[Text]:
    """One line per reason; those that do not fit share one."""
    ending = bool(progress.stopping or progress.finished)
    groups = [
        wait for wait in group_missing(progress.missing, progress.interest) if _is_worth_showing(wait, ending=ending)
    ]
    visible_groups = groups if len(groups) <= most else groups[: most - 1]
    lines, last = [], ""
    for wait in visible_groups:
        style = "yellow" if wait.trouble is MissingReason.LATE else "red"
        label = "dead: " if wait.trouble is MissingReason.DEAD else "missing  " if ending else "waiting for  "
        lines.append(
            _render_line(
                Text.assemble(
                    (label if label != last else " " * len(label), "dim"),
                    (wait.who, f"bold {style}"),
                    (wait.reason, style),
                )
            )
        )
        last = label
    if hidden_groups := groups[len(visible_groups) :]:
        nodes = list(dict.fromkeys(node for wait in hidden_groups for node in wait.nodes))
        lead = " " * len(last) if lines else "missing  "
        lines.append(
            _render_line(Text(f"{lead}and {format_count(len(nodes), 'more node')}: {fold_names(nodes)}", style="dim"))
        )
    return lines


def _is_worth_showing(group: MissingGroup, *, ending: bool) -> bool:
    """Late ranks do not matter in a run that is stopping."""
    return group.trouble is not MissingReason.LATE or (group.seconds >= SHOW_AFTER_SECONDS and not ending)


def _render_tail(progress: RunProgress, room: int) -> Iterator[Text]:
    if not progress.tail or room < 1:
        return
    where = next((row.node for row in progress.rows if progress.interest in row.ranks), "")
    yield _render_line(Text(f"last lines of rank {progress.interest}{where and ' on '}{where}:", style="dim"))
    for line in progress.tail[-room:]:
        yield _render_line(Text.assemble(("│ ", "dim"), clean_line(line.raw())))


def clean_line(line: str) -> str:
    """A line of output without colours and without text that a progress bar overwrote."""
    last = _ESCAPE.sub("", line).rstrip("\r\n").rpartition("\r")[2]
    return escape_text(last.expandtabs(), LONGEST)


def _render_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
