"""The rank table: the progress of each node, or of each group of equal nodes if there are many."""

from collections.abc import Iterable, Mapping, Sequence

from rich.cells import cell_len, set_cell_size

from aboard.commands.shared.node_grid import GAP, LABEL_AT_LEAST, GridRow, NodeGrid
from aboard.commands.shared.number_format import format_count, format_range
from aboard.commands.shared.status_marks import FINE, NOT_ASKED, PENDING, SEVERITY_MARKS, StatusMark
from aboard.core.cluster.node_sets import fold_names
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_progress import MissingReason, NodeRow, RunProgress
from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses import Severity

DEAD = SEVERITY_MARKS[Severity.BLOCK]
LOST = StatusMark(sign="?", style="bold red")
SOME = "bold cyan"

# The headings of the phases: long and short.
HEADS = {
    Phase.STARTED: ("started", "start"),
    Phase.PYTHON: ("Python", "Python"),
    Phase.TORCH: ("torch", "torch"),
    Phase.STORE: ("store", "store"),
    Phase.GROUP: ("group", "group"),
    Phase.COLLECTIVE: ("collective", "coll."),
    Phase.STEPS: ("steps", "steps"),
}
WIDE = 100
# The width of the figures beside a node's name, if the name leaves room.
FIGURES = 2 * GAP + len("cpu  ") + len("memory")
NAME_KEPT = 20
# Above this share of used memory, the kernel's OOM killer may kill a rank.
FULL = 0.9


class RosterTable:
    """At most `lines` lines, including the heading."""

    def __init__(self, progress: RunProgress, *, width: int, lines: int, one_by_one: bool) -> None:
        self._progress = progress
        self._width = width
        self._trouble: dict[str, MissingReason] = {}
        for missing in progress.missing:
            kind = missing.trouble
            self._trouble[missing.node] = min(kind, self._trouble.get(missing.node, kind))
        self._training = all(row.phases and row.phases[0][0] >= Phase.STEPS for row in progress.rows)
        self._heads = [] if self._training else [pair[width < WIDE] for pair in HEADS.values()]
        self._label = self._label_room()
        groups = [[row] for row in progress.rows] if one_by_one else self._alike()
        self._groups, self._left = _split_groups(groups, lines - 1)

    def __rich__(self) -> NodeGrid:
        rows = [self._row(group) for group in self._groups]
        if self._left:
            others = [row.node for group in self._left for row in group]
            label = f"{format_count(len(others), 'other')} {fold_names(others)}"
            rows.append(GridRow(label=self._truncate_label(label), style="dim"))
        steps = ("step", "s/step") if self._training else ()
        finished = ("finished",) if any(_count_ranks(row, Phase.DONE) for row in self._progress.rows) else ()
        return NodeGrid(self._heads, rows, (*steps, *finished, "cpu", "memory", "load", "ranks use"))

    @property
    def height(self) -> int:
        return 1 + len(self._groups) + bool(self._left)

    def _label_room(self) -> int:
        room = self._width - sum(GAP + cell_len(head) for head in self._heads)
        if self._training:
            return max(LABEL_AT_LEAST, self._width // 3)
        return max(LABEL_AT_LEAST, room - FIGURES if room - FIGURES >= NAME_KEPT else room)

    def _alike(self) -> list[list[NodeRow]]:
        """Groups by trouble, by used memory, then by the phase of the slowest rank; the worst come first."""
        groups: dict[tuple[int, bool, int], list[NodeRow]] = {}
        for row in self._progress.rows:
            slowest = row.phases[0][0] if row.phases else Phase.WAITING
            phase = Phase.STEPS if self._training else slowest
            key = (self._trouble.get(row.node, MissingReason.LATE), not _is_full(row), phase)
            groups.setdefault(key, []).append(row)
        return [groups[key] for key in sorted(groups)]

    def _row(self, group: Sequence[NodeRow]) -> GridRow:
        first = group[0]
        names = (
            first.node
            if len(group) == 1
            else f"{format_count(len(group), 'node')} {fold_names(row.node for row in group)}"
        )
        trouble = self._trouble.get(first.node)
        style = "yellow" if any(map(_is_full, group)) else ""
        style = style if trouble in {None, MissingReason.LATE} else "red"
        marks = () if self._training else self._marks(group, trouble)
        return GridRow(label=self._truncate_label(names), marks=marks, more=self._figures(group), style=style)

    def _truncate_label(self, label: str) -> str:
        if cell_len(label) <= self._label:
            return label
        return set_cell_size(label, self._label - 1).rstrip() + "…"

    def _marks(self, group: Sequence[NodeRow], reason: MissingReason | None) -> tuple[StatusMark, ...]:
        """For each phase, whether all ranks have reached it, how many have, or that they are coming to it."""
        world = sum(len(row.ranks) for row in group)
        marks, ahead = [], False
        for phase in HEADS:
            there = sum(_count_ranks(row, phase) for row in group)
            if there == world:
                marks.append(FINE)
            elif ahead:
                marks.append(StatusMark(sign=_format_share(there, world), style=SOME) if there else NOT_ASKED)
            else:
                ahead = True
                marks.append(_choose_mark(there, world, reason))
        return tuple(marks)

    def _figures(self, group: Sequence[NodeRow]) -> Mapping[str, str]:
        world = sum(len(row.ranks) for row in group)
        done = sum(_count_ranks(row, Phase.DONE) for row in group)
        return {
            "step": format_range(row.step for row in group),
            "s/step": format_range((row.step_seconds for row in group), "{:.2f}"),
            "finished": _format_share(done, world) if done else "",
            "cpu": format_range((row.cpu for row in group), "{:.1f}"),
            "memory": _format_percent(row.memory for row in group),
            "load": format_range((row.load for row in group), "{:.1f}"),
            "ranks use": _format_sizes(row.rss for row in group),
        }


def _is_full(row: NodeRow) -> bool:
    return row.memory is not None and row.memory >= FULL


def _format_percent(shares: Iterable[float | None]) -> str:
    shares_text = format_range((None if share is None else 100 * share for share in shares), "{:.0f}")
    return shares_text and f"{shares_text} %"


def _format_sizes(sizes: Iterable[float | None]) -> str:
    known = [each for each in sizes if each is not None]
    return "-".join(dict.fromkeys([format_size(min(known)), format_size(max(known))])) if known else ""


def _split_groups(groups: list[list[NodeRow]], room: int) -> tuple[list[list[NodeRow]], list[list[NodeRow]]]:
    """The groups that fit, and the rest, which share one line."""
    if len(groups) <= room:
        return groups, []
    count = max(0, room - 1)
    return groups[:count], groups[count:]


def _count_ranks(row: NodeRow, phase: Phase) -> int:
    return sum(count for reached, count in row.phases if reached >= phase)


def _choose_mark(there: int, world: int, reason: MissingReason | None) -> StatusMark:
    """The mark of the next phase: pending, partly reached, or out of reach."""
    if reason is MissingReason.DEAD:
        return DEAD
    if reason in {MissingReason.GONE, MissingReason.SILENT}:
        return LOST
    return StatusMark(sign=_format_share(there, world), style=SOME) if there else PENDING


def _format_share(there: int, world: int) -> str:
    """`6/8`, or if that is too long, a percentage from 1 to 99."""
    short = f"{there}/{world}"
    return short if len(short) <= len("12/16") else f"{min(99, max(1, 100 * there // world))} %"
