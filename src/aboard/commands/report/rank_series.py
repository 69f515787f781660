"""What ranks reported over time beyond any trainer's metrics: steps, seconds per step, memory."""

from collections.abc import Mapping
from typing import Any

from aboard.commands.report.page_data import Charts, Figures, Series
from aboard.commands.report.thin_series import choose_rows, round_number
from aboard.record.record_lines import select_figures

_FIGURES = ("step", "step_seconds", "rss")
_MOST_POINTS = 30_000
_MOST_RANKS, _DIGITS = 64, 4
_BUCKETS = 300


class RankSeries:
    """The samples of the first ranks, in columns."""

    def __init__(self) -> None:
        self.ranks: dict[int, list[tuple[float, list[float | None]]]] = {}

    def add(self, child: str, at: float, figures: Mapping[str, Any]) -> None:
        if not child.isdecimal() or len(child) > _DIGITS or (rank := int(child)) >= _MOST_RANKS:
            return
        numbers = select_figures(figures)
        known = [numbers.get(name) for name in _FIGURES]
        if any(value is not None for value in known):
            self.ranks.setdefault(rank, []).append((at, known))


def describe_ranks(series: RankSeries, nodes: Mapping[int, str]) -> Charts:
    """The thinned series of each rank."""
    buckets = max(10, min(_BUCKETS, _MOST_POINTS // max(1, len(series.ranks) * len(_FIGURES) * 2)))
    described: list[Figures] = []
    for rank, rows in sorted(series.ranks.items()):
        figures: dict[str, Series] = {}
        for place, name in enumerate(_FIGURES):
            known = [(at, values[place]) for at, values in rows if values[place] is not None]
            chosen = [known[row] for row in choose_rows([[value for _, value in known]], buckets=buckets)]
            if chosen:
                figures[name] = {
                    "at": tuple(round(at, 1) for at, _ in chosen),
                    "value": tuple(round_number(value) for _, value in chosen),
                }
        described.append({"rank": rank, "node": nodes.get(rank, ""), "figures": figures})
    return {"series": described}
