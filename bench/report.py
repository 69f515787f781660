"""Pages of `aboard report`: whether they show the record and nothing else, what they cost, how they load in a browser.

    python bench/report.py [--quick] [--runs DIRECTORY] [--json FILE]

Pages of five real runs on sandbox hosts (healthy, straggler, lost node and recovery, non-finite loss, a launched
script), of comparisons of them, of a check of these hosts, and of a simulated week of 512 ranks. `--runs` keeps the
real runs, and takes those that are there. `--quick` takes three simulated hours alone.

Pages load in headless Chromium. Each chart in the browser is compared with the record.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from figures import Figures
from recovery_stage import measure_ledger
from report_points import Curve, RecordedPoints, count_wrong_cells, list_points
from report_runs import CHECK_PAGE, RUNS, make_runs
from report_simulated import LATE_RANK, write_long_run

# The browser of the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))
from browser import Browser

WEEK_STEPS, QUICK_STEPS = 600_000, 10_000
MIB = 2**20
# What the lines of a page's charts are made of: for each chart its key of time, its figure, and its data.
CHARTS = """
charts.filter((chart) => chart.series.some((each) => !each.hidden)).map((chart) => ({
  figure: chart.name || Object.entries({ ...NODE_FIGURES, ...RANK_FIGURES })
    .find(([, each]) => each.title === chart.title)[0],
  axis: getKey(chart), names: chart.series.map((each) => each.name),
  data: chart.data(chart).map((each) => Array.from(each)),
}))
"""


@dataclass(kw_only=True)
class Totals:
    """What was found on all pages."""

    points: int = 0
    cells: int = 0
    missing: list[str] = field(default_factory=list)
    peaks: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    wide: list[str] = field(default_factory=list)
    views: int = 0
    ledger: dict[str, float] = field(default_factory=dict)
    other: dict[str, float] = field(default_factory=dict)
    pages: dict[str, tuple[float, float, float]] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three simulated hours; takes at most 60 s")
    parser.add_argument("--runs", metavar="DIRECTORY", help="keep the real runs and pages there, and take those found")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    options = parser.parse_args()
    figures, totals = Figures("report"), Totals()
    with tempfile.TemporaryDirectory() as scratch, Browser() as browser:
        state = Path(options.runs or scratch).absolute()
        runs = state / "aboard" / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        real = [] if options.quick else list(RUNS)
        if missing := tuple(name for name in real if not (runs / name).exists()):
            make_runs(runs, missing)
        long = "hours" if options.quick else "week"
        if not (runs / long).exists():
            write_long_run(runs / long, steps=QUICK_STEPS if options.quick else WEEK_STEPS)
        pages: dict[str, tuple[str, ...]] = {name: (name,) for name in (*real, long)}
        pages |= {f"compare-{len(names)}": ("--compare", *names) for names in (real[:2], real) if names}
        # All of them first: the memory of a process counts from that of the one that started it.
        for name, words in pages.items():
            write_page(totals, state, name, *words)
        for name in pages:
            if name in TRUTHS:
                measure_run(totals, browser, state, name)
            else:
                measure_views(totals, browser, state / f"{name}.html")
        if real:
            measure_views(totals, browser, state / CHECK_PAGE)
        report_totals(figures, totals)
    sys.exit(figures.finish(options.json))


def measure_run(totals: Totals, browser: Browser, state: Path, name: str) -> None:
    """One run: its data against its record, and its page in the browser."""
    path = state / "aboard" / "runs" / name
    page = state / f"{name}.html"
    run = json.loads(page.read_text().partition('id="data">')[2].partition("</script>")[0])["runs"][0]
    points = RecordedPoints(path)
    drawn = defaultdict[Curve, list[float]](list)
    for curve, at, value in list_points(run):
        totals.points += 1
        drawn[("metrics", "all", curve[2]) if curve[0] == "metrics" else curve].append(value)
        if not points.has(curve, at, value):
            totals.missing.append(f"{name}: {curve} {value} at {at}")
    totals.peaks += [f"{name}: {peak}" for peak in points.list_missing_peaks(drawn)]
    cells, wrong = count_wrong_cells(run, path)
    totals.cells += cells
    totals.missing += [f"{name}: {wrong} cells"] * bool(wrong)
    ledger, (recorded, wall) = run["ledger"], measure_ledger(path)
    apart = [abs(sum(ledger["total"].values()) - wall), abs(sum(recorded.values()) - wall), abs(ledger["wall"] - wall)]
    totals.ledger[name] = 100 * max(apart) / wall
    if ledger["divided"]:
        totals.other[name] = 100 * ledger["total"].get("other", 0.0) / wall
    if not TRUTHS[name](run):
        totals.unnamed.append(name)
    measure_views(totals, browser, page)
    for chart in browser.evaluate(CHARTS):
        check_chart(totals, points, run, name, chart)


def write_page(totals: Totals, state: Path, name: str, *words: str) -> None:
    """Runs `aboard report` in a process of its own: its CPU seconds, since it hardly waits, and its memory."""
    path = state / f"{name}.html"
    path.unlink(missing_ok=True)
    env = {**os.environ, "XDG_STATE_HOME": str(state)}
    process = subprocess.Popen(["aboard", "report", *words, "--output", str(path)], env=env, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"aboard report {name} failed")
    totals.pages[name] = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / MIB, path.stat().st_size / MIB


def measure_views(totals: Totals, browser: Browser, path: Path) -> None:
    """Loads it in both widths and schemes; the last one stays open."""
    for width in (400, 1400):
        for dark in (True, False):
            totals.views += 1
            browser.open_page(path, width=width, dark=dark)
            view = f"{path.stem} at {width} pixels, {'dark' if dark else 'light'}"
            totals.complaints += [f"{view}: {complaint}" for complaint in browser.complaints]
            if (wanted := browser.evaluate("document.scrollingElement.scrollWidth")) > width:
                totals.wide.append(f"{view}: {wanted}")


def check_chart(totals: Totals, points: RecordedPoints, run: Mapping[str, Any], name: str, chart: Any) -> None:
    """Each point of a chart, as the browser has it."""
    xs, *columns = chart["data"]
    times = [x + run["began"] for x in xs]
    if chart["axis"] != "time":
        sys.exit(f"{name}: the chart of {chart['figure']} is not over time")
    nodes = {each["node"] for each in run["samples"]["series"]}
    for source, column in zip(chart["names"], columns, strict=True):
        figure = "eval_loss" if source == "evaluation" else chart["figure"]
        curve: Curve = ("metrics", "all", figure)
        if source in nodes:
            curve = ("node", source, figure)
        elif source.startswith("rank "):
            curve = ("rank", int(source.removeprefix("rank ")), figure)
        for at, value in zip(times, column, strict=True):
            if value is None:
                continue
            totals.points += 1
            if not points.has(curve, at, value):
                totals.missing.append(f"{name}, in the browser: {curve} {value} at {at}")


def names_node(run: Mapping[str, Any], node: str) -> bool:
    return any(verdict["nodes"] == [node] for verdict in run["verdicts"])


def is_slowest(run: Mapping[str, Any], rank: int) -> bool:
    return [each["rank"] for each in run["lateness"]["slowest"][:1]] == [rank]


# What a page must say about each run.
TRUTHS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "healthy": lambda run: run["state"] == "finished" and not run["verdicts"],
    "straggler": lambda run: run["state"] == "finished" and is_slowest(run, 2),
    "lost-node": lambda run: run["state"] == "finished" and names_node(run, "n2") and len(run["attempts"]) > 1,
    "non-finite": lambda run: run["state"] == "failed" and run["verdicts"][0]["code"] == "train-nonfinite",
    "script": lambda run: run["state"] == "finished" and len(run["ranks"]["series"]) == 4,
    "week": lambda run: is_slowest(run, LATE_RANK) and len(run["attempts"]) == 4,
    "hours": lambda run: is_slowest(run, LATE_RANK) and len(run["attempts"]) == 4,
}


def report_totals(figures: Figures, totals: Totals) -> None:
    shown = f"{totals.points:,} points and {totals.cells:,} cells"
    figures.add("drawn points that are not in the record", len(totals.missing), 0, note=note(totals.missing) or shown)
    figures.add("extremes of the record that are not drawn", len(totals.peaks), 0, note=note(totals.peaks))
    figures.add("pages that do not say what happened", len(totals.unnamed), 0, note=note(totals.unnamed))
    worst = max(totals.ledger, key=totals.ledger.__getitem__)
    figures.add("ledger, apart from the wall time", totals.ledger[worst], 1, unit="%", note=worst)
    worst = max(totals.other, key=totals.other.__getitem__)
    figures.add("ledger, time of class other", totals.other[worst], 2, unit="%", note=worst)
    limits = (
        ("CPU seconds to write a page", 10, "s"),
        ("memory to write a page", 500, "MiB"),
        ("size of a page", 5, "MiB"),
    )
    for place, (name, bar, unit) in enumerate(limits):
        worst = max(totals.pages, key=lambda page: totals.pages[page][place])
        figures.add(name, totals.pages[worst][place], bar, unit=unit, note=worst)
    views = f"{totals.views} views at 400 and 1,400 pixels, light and dark"
    figures.add("console errors and requests", len(totals.complaints), 0, note=note(totals.complaints) or views)
    figures.add("views wider than the screen", len(totals.wide), 0, note=note(totals.wide))


def note(found: list[str]) -> str:
    return "; ".join(found[:4])


if __name__ == "__main__":
    main()
