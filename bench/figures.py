"""Measured figures and their limits: prints each one, then a summary line, and writes JSON on request."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number and its upper limit."""

    name: str
    value: float
    bar: float
    unit: str = ""
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.value <= self.bar


class Figures:
    """Collects the figures of one bench."""

    def __init__(self, bench: str) -> None:
        self._bench = bench
        self._figures: list[Figure] = []

    def add(self, name: str, value: float, bar: float, *, unit: str = "", note: str = "") -> None:
        figure = Figure(name=name, value=float(f"{value:.4g}"), bar=bar, unit=unit, note=note)
        self._figures.append(figure)
        verdict = "holds" if figure.holds else "MISSED"
        # Differences of 1e-6 are figures too.
        shown = f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}"
        print(f"{name:<58} {shown:>9} {unit:<3} ≤ {bar:<7g} {verdict:<7} {note}", flush=True)

    def finish(self, path: str | None) -> int:
        held = sum(figure.holds for figure in self._figures)
        if path is not None:
            report = [{**asdict(figure), "holds": figure.holds} for figure in self._figures]
            Path(path).write_text(json.dumps({"bench": self._bench, "figures": report}, indent=2) + "\n")
        print(f"{self._bench}: {held} of {len(self._figures)} figures hold")
        return 0 if held == len(self._figures) else 1


Measure = Callable[[Figures, bool], None]


def main(bench: str, measure: Measure, sections: Mapping[str, Measure] | None = None) -> None:
    """`python bench/NAME.py [--quick] [--only SECTION] [--json FILE]`; exit 0 only if all figures hold."""
    parser = argparse.ArgumentParser(description=measure.__doc__)
    if sections is not None:
        parser.add_argument("--only", choices=list(sections), help="measure this section only")
    parser.add_argument("--quick", action="store_true", help="smaller sizes; takes at most 60 s")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    options = parser.parse_args()
    figures = Figures(bench)
    only = getattr(options, "only", None)
    (sections[only] if sections and only else measure)(figures, options.quick)
    sys.exit(figures.finish(options.json))
