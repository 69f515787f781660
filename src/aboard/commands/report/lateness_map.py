"""The heat map of a run: for how long other ranks waited for each one, by time."""

import sys
from array import array
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import field

from aboard.commands.report.page_data import LatenessChart, SlowRank
from aboard.core.run.lateness import UNMEASURED, LatenessWindow
from aboard.core.text.durations import format_duration, format_latency
from aboard.lazy_dataclass import dataclass

# The cells of a map; more ranks or windows share cells, which show their highest value.
MOST_ROWS, MOST_COLUMNS = 512, 1_000
# In a cell: nothing was measured there.
UNKNOWN = 0xFFFF
_NAMED = 5
# A rank was late in a window if it cost this share of its time, and this many times as much as the typical rank.
_LATE_SHARE, _LATE_TIMES = 0.01, 2.0
# One window that is not late, or that is missing, is within a spell.
_MOST_BETWEEN = 1.5
# A rank is named if a spell of late windows cost as many seconds, or this share of a short run, and this share of the
# slowest rank's.
_NAMED_SECONDS, _NAMED_SHARE, _NAMED_OF_SLOWEST = 30.0, 0.05, 0.2


@dataclass(slots=True)
class _Spell:
    """Neighbouring windows in which a rank was late: mean wait × seconds, these seconds, and what it cost."""

    start: float
    stop: float
    waited: float = 0.0
    seconds: float = 1e-9
    lost: float = 0.0


@dataclass(slots=True)
class _RankTotal:
    """The seconds that others waited for a rank, its last spell, and the one that cost most."""

    lost: float = 0.0
    last: _Spell = field(default_factory=lambda: _Spell(0.0, 0.0))
    worst: _Spell = field(default_factory=lambda: _Spell(0.0, 0.0))


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
        last_rank, drawn, ranks = self.ranks - 1, min(self.ranks, MOST_ROWS), self.ranks
        rows = [(min(rank, last_rank) * drawn // ranks, mean) for rank, (mean, _, _) in window.late.items()]
        for column in range(first, last + 1):
            self.known.setdefault(column, set()).update(measured)
            cells = self.cells.setdefault(column, {})
            for row, mean in rows:
                if mean > cells.get(row, 0.0):
                    cells[row] = mean
        self._add_totals(window)
        for reason, ranges in window.unmeasured.items():
            count = sum(high - low + 1 for low, high in ranges)
            self.unmeasured[reason] = max(self.unmeasured.get(reason, 0), count)

    def _find_row(self, rank: int) -> int:
        return min(rank, self.ranks - 1) * min(self.ranks, MOST_ROWS) // max(1, self.ranks)

    def _add_totals(self, window: LatenessWindow) -> None:
        stop, seconds, interval = window.at, window.seconds, window.interval
        start, least = stop - seconds, _LATE_TIMES * _find_typical(window)
        for rank, (mean, _, _) in window.late.items():
            share = min(1.0, mean / interval) if interval else 0.0
            lost = share * seconds
            total = self.totals.get(rank) or self.totals.setdefault(rank, _RankTotal())
            total.lost += lost
            if share < _LATE_SHARE or mean < least:
                continue
            last = total.last
            if start - last.stop > _MOST_BETWEEN * seconds:
                last = total.last = _Spell(start, start)
            last.stop = stop
            last.waited += mean * seconds
            last.seconds += seconds
            last.lost += lost
            if last.lost > total.worst.lost:
                total.worst = last


def _find_typical(window: LatenessWindow) -> float:
    """The median of all measured ranks, the lower one of two: on a busy machine, every rank is late now and then."""
    count = sum(high - low + 1 for low, high in window.measured)
    place = (count - 1) // 2 - (count - len(window.late))
    return sorted(each.mean for each in window.late.values())[place] if place >= 0 and window.late else 0.0


def fold_lateness(windows: Iterable[LatenessWindow], *, start: float, stop: float, ranks: int) -> LatenessMap:
    folded = LatenessMap(start=start, width=max(1e-3, stop - start) / MOST_COLUMNS, ranks=max(1, ranks))
    for window in windows:
        folded.add(window)
    return folded


def describe_lateness(folded: LatenessMap, nodes: Mapping[int, str]) -> LatenessChart:
    """The map, each row as base64 of 16-bit cells in units of `unit` seconds, and the slowest ranks in words."""
    if not folded.windows:
        return {"measured": False, "why": _explain_missing(folded.unmeasured)}
    rows = min(folded.ranks, MOST_ROWS)
    worst = max((value for cells in folded.cells.values() for value in cells.values()), default=0.0)
    unit = max(1e-4, worst / (UNKNOWN - 1))
    cells = [array("H", [UNKNOWN]) * MOST_COLUMNS for _ in range(rows)]
    for column, known in folded.known.items():
        for first, last in known:
            for row in range(first, last + 1):
                cells[row][column] = 0
        for row, value in folded.cells.get(column, {}).items():
            cells[row][column] = round(value / unit)
    for each in cells if sys.byteorder == "big" else ():
        each.byteswap()
    return {
        "measured": True,
        "start": round(folded.start, 3),
        "width": folded.width,
        "columns": MOST_COLUMNS,
        "rows": rows,
        "ranks": folded.ranks,
        "unit": unit,
        # The end of the colour scale: at least as if the others did nothing but wait, so that small delays stay dark.
        "most": max(worst, folded.interval, 10 * folded.uncertainty, 1e-4),
        "uncertainty": folded.uncertainty,
        # A tuple, which the scrubber leaves as it is: it would find keys in base64.
        "cells": tuple(b64encode(row).decode() for row in cells),
        "slowest": _describe_slowest(folded, nodes),
        "unmeasured": [
            f"{count} rank{'s' * (count != 1)} at times: {UNMEASURED[why]}"
            for why, count in sorted(folded.unmeasured.items())
        ],
    }


def _describe_slowest(folded: LatenessMap, nodes: Mapping[int, str]) -> list[SlowRank]:
    """The ranks whose worst spell cost the run most, with when and how much."""
    costly = sorted(folded.totals.items(), key=lambda each: -each[1].worst.lost)
    least = min(_NAMED_SECONDS, _NAMED_SHARE * folded.measured_seconds)
    least = max([least, *(_NAMED_OF_SLOWEST * total.worst.lost for _, total in costly[:1])])
    return [
        {
            "rank": rank,
            "node": nodes.get(rank, "?"),
            "start": round(total.worst.start, 1),
            "stop": round(total.worst.stop, 1),
            "lost": round(total.lost, 2),
            "share": total.lost / max(1e-9, folded.measured_seconds),
            "text": f"others waited {format_latency(total.worst.waited / total.worst.seconds)} for it at each"
            f" collective, in the mean, and {format_duration(total.worst.lost)} in all",
        }
        for rank, total in costly[:_NAMED]
        if total.worst.lost >= least
    ]


def _explain_missing(unmeasured: Mapping[str, int]) -> str:
    reasons = ", ".join(UNMEASURED[why] for why in unmeasured)
    return reasons or "the record has no samples of collectives"
