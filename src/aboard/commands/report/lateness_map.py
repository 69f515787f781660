"""The heat map of a run: for how long other ranks waited for each one, by time."""

import sys
from array import array
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from aboard.commands.report.page_data import LatenessChart, SlowRank
from aboard.core.run.lateness import LatenessWindow
from aboard.core.text.durations import format_duration, format_latency
from aboard.lazy_dataclass import dataclass

# The cells of a map; more ranks or windows share cells, which show their highest value.
MOST_ROWS, MOST_COLUMNS = 512, 1_000
# In a cell: nothing was measured there.
UNKNOWN = 0xFFFF
_NAMED = 5
# A rank is named if it costs more than this share of the time in any part of the run.
_NAMED_SHARE = 0.01
_LEAST_SHARE_OF_SCALE = 0.25


@dataclass(kw_only=True)
class _RankTotal:
    """What a rank cost in all windows: seconds that others waited, and in the worst part of the run."""

    lost: float = 0.0
    worst: float = 0.0
    worst_at: float = 0.0
    late_windows: list[tuple[float, float, float]] = field(default_factory=list)


@dataclass(kw_only=True)
class LatenessMap:
    """The windows of a run, folded while they are read into at most twice as many columns as are drawn."""

    start: float
    width: float
    ranks: int
    windows: int = 0
    uncertainty: float = 0.0
    # The mean time between two collectives.
    interval: float = 0.0
    measured_seconds: float = 0.0
    totals: dict[int, _RankTotal] = field(default_factory=dict)
    unmeasured: dict[str, int] = field(default_factory=dict)
    # By column and row: the highest mean in seconds.
    cells: dict[int, dict[int, float]] = field(default_factory=dict)
    # By column: the first and last row of each part that was measured.
    known: dict[int, set[tuple[int, int]]] = field(default_factory=dict)

    def add(self, window: LatenessWindow) -> None:
        first, last = (
            min(MOST_COLUMNS - 1, max(0, int((at - self.start) / self.width)))
            for at in (window.at - window.seconds, window.at - 1e-6)
        )
        self.windows += 1
        self.interval += (window.interval - self.interval) / self.windows
        self.uncertainty = max(self.uncertainty, window.uncertainty)
        self.measured_seconds += window.seconds
        measured = {(self._find_row(low), self._find_row(high)) for low, high in window.measured}
        late: dict[int, float] = {}
        for rank, lateness in window.late.items():
            row = self._find_row(rank)
            late[row] = max(late.get(row, 0.0), lateness.mean)
            self._total(rank, window, lateness.mean)
        for column in range(first, last + 1):
            self.known.setdefault(column, set()).update(measured)
            cells = self.cells.setdefault(column, {})
            for row, mean in late.items():
                cells[row] = max(cells.get(row, 0.0), mean)
        for reason, ranges in window.unmeasured.items():
            count = sum(high - low + 1 for low, high in ranges)
            self.unmeasured[reason] = max(self.unmeasured.get(reason, 0), count)

    def _find_row(self, rank: int) -> int:
        return min(rank, self.ranks - 1) * min(self.ranks, MOST_ROWS) // max(1, self.ranks)

    def _total(self, rank: int, window: LatenessWindow, mean: float) -> None:
        share = min(1.0, mean / window.interval) if window.interval else 0.0
        total = self.totals.setdefault(rank, _RankTotal())
        total.lost += share * window.seconds
        if share > total.worst:
            total.worst, total.worst_at = share, window.at
        if share >= _NAMED_SHARE and len(total.late_windows) < 100_000:  # noqa: PLR2004 - hostile records
            total.late_windows.append((window.at - window.seconds, window.at, mean))


def fold_lateness(windows: Iterable[LatenessWindow], *, start: float, stop: float, ranks: int) -> LatenessMap:
    folded = LatenessMap(start=start, width=max(1e-3, stop - start) / MOST_COLUMNS, ranks=max(1, ranks))
    for window in windows:
        folded.add(window)
    return folded


def describe_lateness(folded: LatenessMap, nodes: Mapping[int, str]) -> LatenessChart:
    """The map as base64 of 16-bit cells, row by row, in units of `unit` seconds, and the slowest ranks in words."""
    if not folded.windows:
        return {"measured": False, "why": _explain_missing(folded.unmeasured)}
    rows = min(folded.ranks, MOST_ROWS)
    worst = max((value for cells in folded.cells.values() for value in cells.values()), default=0.0)
    unit = max(1e-4, worst / (UNKNOWN - 1))
    cells = array("H", [UNKNOWN]) * (rows * MOST_COLUMNS)
    for column, known in folded.known.items():
        for first, last in known:
            for row in range(first, last + 1):
                cells[row * MOST_COLUMNS + column] = 0
        for row, value in folded.cells.get(column, {}).items():
            cells[row * MOST_COLUMNS + column] = round(value / unit)
    if sys.byteorder == "big":
        cells.byteswap()
    return {
        "measured": True,
        "start": round(folded.start, 3),
        "width": folded.width,
        "columns": MOST_COLUMNS,
        "rows": rows,
        "ranks": folded.ranks,
        "unit": unit,
        # The end of the colour scale: a run in which nobody is late is dark everywhere.
        "most": max(worst, _LEAST_SHARE_OF_SCALE * folded.interval, 10 * folded.uncertainty, 1e-4),
        "uncertainty": folded.uncertainty,
        "cells": b64encode(cells.tobytes()).decode(),
        "slowest": _describe_slowest(folded, nodes),
        "unmeasured": [f"{count} rank{'s' * (count != 1)}: {why}" for why, count in sorted(folded.unmeasured.items())],
    }


def _describe_slowest(folded: LatenessMap, nodes: Mapping[int, str]) -> list[SlowRank]:
    """The ranks that cost the run most, with when and how much."""
    costly = sorted(folded.totals.items(), key=lambda each: -each[1].lost)
    return [
        _describe_rank(rank, total, nodes.get(rank, "?"), folded)
        for rank, total in costly[:_NAMED]
        if total.worst >= _NAMED_SHARE and total.late_windows
    ]


def _describe_rank(rank: int, total: _RankTotal, node: str, folded: LatenessMap) -> SlowRank:
    start, stop = _find_densest(total.late_windows)
    inside = [mean for begin, end, mean in total.late_windows if begin >= start and end <= stop]
    mean = sum(inside) / len(inside)
    return {
        "rank": rank,
        "node": node,
        "start": round(start, 1),
        "stop": round(stop, 1),
        "lost": round(total.lost, 2),
        "share": total.lost / max(1e-9, folded.measured_seconds),
        "text": f"others waited {format_latency(mean)} for it at each collective, in the mean;"
        f" {format_duration(total.lost)} of {format_duration(folded.measured_seconds)} were spent waiting",
    }


def _find_densest(windows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """The spell of neighbouring windows with the most waiting."""
    best, current = (0.0, 0.0, 0.0), None
    for start, stop, mean in windows:
        if current is not None and start - current[1] <= 3 * (stop - start):
            current = (current[0], stop, current[2] + mean * (stop - start))
        else:
            current = (start, stop, mean * (stop - start))
        best = max(best, current, key=lambda spell: spell[2])
    return best[0], best[1]


def _explain_missing(unmeasured: Mapping[str, int]) -> str:
    reasons = ", ".join(unmeasured)
    return reasons or "the record has no samples of collectives"
