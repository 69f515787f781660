r"""The same as plain lines, each of which says what it is in its first word, and as JSON.

source train.jsonl messages: every record has `messages`, 10,000 rows
rows 10,000, 3 of them broken
bar 129 256 1203
row train.jsonl:1 <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n«Hello!<|im_end|>»\n
block data-eos all seen: all 10,000 rows …
done: the gate is shut: …
"""

from collections.abc import Iterator
from typing import Any

from aboard.data.gate.report import DataReport
from aboard.data.gate.tally import Tally
from aboard.data.stats import bars
from aboard.ui.as_json import as_plain, dump_json
from aboard.ui.data import BARS, counted, facts, last_words
from aboard.ui.figures import many
from aboard.ui.plain import finding_lines
from aboard.ui.tokens import row_line


def data_lines(report: DataReport, *, stats: bool) -> Iterator[str]:
    """Findings last, worst first, as `aboard check` writes them."""
    for source in report.sources:
        kind = "validation" if source.validation else "source"
        yield f"{kind} {source.path.visible(200)} {source.format}: {source.why}, {many(source.tally.rows, 'row')}"
    yield from (f"{label} {text}" for label, text in facts(report))
    if stats:
        yield from (f"bar {bar.low} {bar.high} {bar.rows}" for bar in bars(counted(report)[0], BARS))
    yield from map(row_line, report.rows)
    for finding in report.findings:
        yield from finding_lines(finding)
        if finding.code in report.examples:
            yield f"{finding.severity.word} {finding.code} {row_line(report.examples[finding.code])}"
    yield f"done: {last_words(report)}"


def data_json(report: DataReport) -> str:
    """Stable names, numbers as numbers; `bars` has the lengths, `findings` what `aboard check --json` has."""
    lengths, unit = counted(report)
    found = {
        "seconds": round(report.seconds, 3),
        "sources": [
            {
                "path": source.path,
                "format": source.format,
                "why": source.why,
                "columns": source.columns,
                "files": source.files,
                "validation": source.validation,
                **_counts(source.tally),
            }
            for source in report.sources
        ],
        **_counts(report.tally),
        "unit": unit,
        "lengths": {
            "half": lengths.percentile(0.5),
            "p90": lengths.percentile(0.9),
            "p99": lengths.percentile(0.99),
            "longest": lengths.longest,
        },
        "bars": bars(lengths, BARS),
        "bins": None if report.fill is None else {**as_plain(report.fill), "full": round(report.fill.full, 4)},
        "batch": report.batch,
        "steps": report.steps,
        "rows_shown": [{"where": str(row.where), "pieces": row.pieces} for row in report.rows],
        "allowed": report.allowed,
        "findings": report.findings,
    }
    return dump_json(found)


def _counts(tally: Tally) -> dict[str, Any]:
    encoded = bool(tally.encoded)
    return {
        "rows": tally.rows,
        "broken": tally.broken,
        "characters": tally.characters.total,
        "tokens": tally.tokens.total if encoded else None,
        "supervised": tally.supervised if encoded else None,
    }
