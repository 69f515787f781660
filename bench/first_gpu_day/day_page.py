"""The page of a day, the column of docs/figures.md, and the table that is printed before the day begins."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from aboard.core.text.input_text import format_count
from aboard.diagnoses.untrusted import escape_text
from first_gpu_day.day_run import DayRun

_MARKS = {"as expected": "✓", "differs": "≠", "failed": "✗", "not run": "–"}
_MOST_FIGURES = 40
_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 74rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { border-bottom: 1px solid #8884; padding: .35rem .6rem; text-align: left; vertical-align: top }
td:nth-child(4) { overflow-wrap: anywhere; max-width: 34rem } td:nth-child(5) { white-space: nowrap }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.mark { font-weight: 600; white-space: nowrap }
.as { color: #17803d } .differs, .failed { color: #c2410c } .not { color: #777 }
dl { columns: 2 24rem; font-size: .9rem } dt { break-after: avoid; color: #777 }
dd { margin: 0 0 .3rem 1rem; overflow-wrap: anywhere }
@media (max-width: 44rem) { :is(td, th):nth-child(3) { display: none } .mark { white-space: normal } }
summary { cursor: pointer } .note { border-left: 4px solid #c2410c; padding-left: .8rem }
"""
# Nothing is loaded and nothing runs, whatever a text contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_SIMULATED = (
    "This day was simulated: hosts on one machine, GPUs that compute on its CPU. It shows that the script runs to"
    " the end. It proves nothing about kernels, speed, NCCL or the memory of a GPU."
)


def write_day_page(
    runs: Sequence[DayRun], results: Mapping[str, Mapping[str, Any]], *, when: str, simulated: bool
) -> str:
    """One page from redacted results, without scripts and requests."""
    counts = {state: sum(each["state"] == state for each in results.values()) for state in _MARKS}
    words = [f"{count} {state}" for state, count in counts.items() if count]
    missing = len([run for run in runs if run.name not in results])
    summary = ", ".join([*words, *([f"{missing} not done: dropped, or still to do"] if missing else [])])
    rows = "".join(_write_row(run, results.get(run.name)) for run in runs)
    details = "".join(_write_figures(run, results[run.name]) for run in runs if run.name in results)
    note = f'<p class="note">{_SIMULATED}</p>' if simulated else ""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>First GPU day</title><style>{_STYLE}</style></head><body>"
        f"<h1>First GPU day, {_escape(when)}</h1>{note}<p>{_escape(summary)}.</p>"
        "<table><thead><tr><th></th><th>run</th><th>what it proves</th><th>what it showed</th><th>time</th>"
        "</tr></thead>"
        f"<tbody>{rows}</tbody></table><h2>Figures</h2>{details}</body></html>\n"
    )


def write_column(runs: Sequence[DayRun], results: Mapping[str, Mapping[str, Any]], *, title: str) -> str:
    """Rows of a Markdown table with this day as a column, for docs/figures.md."""
    lines = [f"| run | what it proves | {_escape_cell(title)} |", "|---|---|---|"]
    for run in runs:
        result = results.get(run.name)
        cell = "not done" if result is None else f"{_MARKS[result['state']]} {result['seen']}"
        lines.append(f"| {run.name} | {_escape_cell(run.proves)} | {_escape_cell(cell)} |")
    return "\n".join(lines) + "\n"


def format_table(kept: Sequence[DayRun], dropped: Sequence[DayRun], done: int, minutes: float) -> str:
    """The runs in their order with their minutes, and those that are dropped first when time is short."""
    order = sorted(enumerate(kept), key=lambda each: (each[1].drop, each[0]), reverse=True)
    place = {run.name: number for number, (_, run) in enumerate(order, 1)}
    lines = ["  min  dropped  run                  what it proves"]
    for run in [*kept, *dropped]:
        when = "now" if run in dropped else str(place[run.name])
        asks = "  (asks first)" if run.question else ""
        lines.append(f"  {run.minutes:3g}  {when:>7}  {run.name:<19}  {run.proves}{asks}")
    total = sum(run.minutes for run in kept)
    lines.append(f"{total:g} of {minutes:g} minutes; {format_count(done, 'run')} done already")
    return "\n".join(lines)


def _write_row(run: DayRun, result: Mapping[str, Any] | None) -> str:
    state = "not done" if result is None else str(result["state"])
    mark = f"{_MARKS.get(state, '–')} {state}"
    seen = "" if result is None else str(result["seen"])
    took = "" if result is None else f"{result['seconds']:.0f} s"
    style = state.partition(" ")[0]
    cells = (_escape(run.name), _escape(run.proves), _escape(seen), took)
    return f'<tr><td class="mark {style}">{mark}</td>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _write_figures(run: DayRun, result: Mapping[str, Any]) -> str:
    losses = [value for name, value in result["figures"].items() if name.startswith("loss ")]
    figures = [(name, value) for name, value in result["figures"].items() if not name.startswith("loss ")]
    if losses:
        figures.append(("losses", ", ".join(map(_format, losses))))
    if not figures:
        return ""
    rows = "".join(
        f"<dt>{_escape(name)}</dt><dd>{_escape(_format(value))}</dd>" for name, value in figures[:_MOST_FIGURES]
    )
    return f"<details open><summary>{_escape(run.name)}</summary><dl>{rows}</dl></details>"


def _format(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1e4 else str(value)


def _escape(text: str) -> str:
    return html.escape(escape_text(text, 300))


def _escape_cell(text: str) -> str:
    """For a cell of a Markdown table: its words, never its markup."""
    words = html.escape(escape_text(text, 160), quote=False)
    return "".join(f"\\{char}" if char in "\\`*_|[]!" else char for char in words)
