r"""The data report as plain lines, each of which starts with its kind, and as JSON.

source train.jsonl messages: every record has `messages`, 10,000 rows
rows 10,000, 3 of them left out
bar 129 256 1203
row train.jsonl:1 <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«Hello!<|im_end|>»\n
block data-eos all seen: all 10,000 rows …
done: data check failed: …
"""

from collections.abc import Iterator
from typing import Any

from aboard.commands.data.report_view import BARS, choose_lengths, format_conclusion, list_facts
from aboard.commands.data.token_row import format_row_line
from aboard.commands.shared.findings.finding_lines import format_finding_lines
from aboard.commands.shared.json_output import dump_json, to_plain_value
from aboard.commands.shared.number_format import format_count
from aboard.trainer.data.length_statistics import build_bars
from aboard.trainer.data.quality.data_report import DataReport
from aboard.trainer.data.quality.row_statistics import DataStatistics


def format_data_lines(report: DataReport, *, stats: bool) -> Iterator[str]:
    """Findings come last, worst first, as `aboard check` prints them."""
    for source in report.sources:
        kind = "validation" if source.validation else "source"
        rows = format_count(source.statistics.rows, "row")
        yield f"{kind} {source.path.visible(200)} {source.format}: {source.why}, {rows}"
    yield from (f"{label} {text}" for label, text in list_facts(report))
    if stats:
        yield from (f"bar {bar.low} {bar.high} {bar.rows}" for bar in build_bars(choose_lengths(report)[0], BARS))
    yield from map(format_row_line, report.rows)
    for finding in report.findings:
        yield from format_finding_lines(finding)
        if finding.code in report.examples:
            yield f"{finding.severity.word} {finding.code} {format_row_line(report.examples[finding.code])}"
    yield f"done: {format_conclusion(report)}"


def format_data_json(report: DataReport) -> str:
    """The report with stable keys; `bars` is the histogram, `findings` have the form of `aboard check --json`."""
    lengths, unit = choose_lengths(report)
    document = {
        "seconds": round(report.seconds, 3),
        "sources": [
            {
                "path": source.path,
                "format": source.format,
                "why": source.why,
                "columns": source.columns,
                "files": source.files,
                "validation": source.validation,
                **_collect_counts(source.statistics),
            }
            for source in report.sources
        ],
        **_collect_counts(report.statistics),
        "unit": unit,
        "lengths": {
            "half": lengths.percentile(0.5),
            "p90": lengths.percentile(0.9),
            "p99": lengths.percentile(0.99),
            "longest": lengths.longest,
        },
        "bars": build_bars(lengths, BARS),
        "bins": None if report.fill is None else {**to_plain_value(report.fill), "full": round(report.fill.full, 4)},
        "batch": report.batch,
        "steps": report.steps,
        "rows_shown": [{"where": str(row.location), "pieces": row.pieces} for row in report.rows],
        "allowed": report.allowed,
        "findings": report.findings,
    }
    return dump_json(document)


def _collect_counts(statistics: DataStatistics) -> dict[str, Any]:
    encoded = bool(statistics.encoded)
    return {
        "rows": statistics.rows,
        "broken": statistics.broken,
        "characters": statistics.characters.total,
        "tokens": statistics.tokens.total if encoded else None,
        "supervised": statistics.supervised if encoded else None,
    }
