"""Rows that can't be read, and rows without content."""

from collections.abc import Iterator

from aboard.diagnoses import NO_FIX, Diagnosis, Finding, Fix, Severity, join_fixes
from aboard.diagnoses.untrusted import NO_TEXT, escape_text
from aboard.trainer.data.intake.compressed_files import COMPRESSED_SUFFIXES
from aboard.trainer.data.quality.data_evidence import (
    SIGNIFICANT_SHARE,
    DataEvidence,
    format_locations,
    format_sed_script,
    format_share,
)
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.flagged_rows import FlaggedRows
from aboard.trainer.data.quality.jq_filters import build_fit_filter, has_json_lines, name_output
from aboard.trainer.data.quality.row_statistics import CheckedRow, RowFlag
from aboard.trainer.data.quality.rules.unmarked_template import TEMPLATE_CODES
from aboard.trainer.data.rows import DataRow, RowLocation
from aboard.trainer.diagnoses import data_quality

BROKEN, EMPTY = "broken", "empty"


def inspect_row(checked: CheckedRow, _settings: EncodingSettings) -> Iterator[RowFlag]:
    broken = checked.broken
    if broken is not None and broken.code not in TEMPLATE_CODES:
        yield EMPTY if broken.code == "row-empty" else BROKEN, broken.why
    elif isinstance(checked.row, DataRow) and _is_empty(checked, checked.row):
        yield EMPTY, NO_TEXT


def check_no_rows(evidence: DataEvidence) -> Iterator[Finding]:
    """A run without rows ends at once, or never starts."""
    if evidence.statistics.rows == 0:
        yield data_quality.NO_ROWS.finding(
            nodes=(),
            seen=f"{escape_text(', '.join(evidence.files), 300)}: no rows found",
            why="There is nothing to train on.",
            fix=data_quality.NO_ROWS.fix(file=evidence.files[0]) if evidence.files else NO_FIX,
        )


def check_unreadable_rows(evidence: DataEvidence) -> Iterator[Finding]:
    """Unreadable lines are never intended: an interrupted copy, two files in one, or a wrong format."""
    flagged = evidence.statistics.find_flagged(BROKEN)
    if flagged:
        # If no row can be read, the file has another format, and deleting lines doesn't help.
        repair = (
            _build_repair_fix(flagged, evidence.format)
            if flagged.count < evidence.statistics.rows
            else build_view_fix(flagged.examples[0].location, data_quality.BROKEN)
        )
        yield data_quality.BROKEN.finding(
            nodes=(),
            seen=f"{format_share(flagged.count, evidence.statistics.rows)} can't be read: {format_locations(flagged)}",
            why="These rows would be left out of training. A broken last line usually means that a copy was interrupted"
            " and an unknown number of rows is missing.",
            fix=join_fixes(repair, evidence.allow(data_quality.BROKEN)),
        )


def check_empty_rows(evidence: DataEvidence) -> Iterator[Finding]:
    """An empty row teaches the model nothing, or to stop at once."""
    flagged = evidence.statistics.find_flagged(EMPTY)
    if flagged:
        is_significant = flagged.count >= SIGNIFICANT_SHARE * evidence.statistics.rows
        yield data_quality.EMPTY.finding(
            severity=Severity.BLOCK if is_significant else Severity.WARN,
            nodes=(),
            seen=f"{format_share(flagged.count, evidence.statistics.rows)} contain no text:"
            f" {format_locations(flagged)}",
            why="Empty rows count as rows but teach the model nothing, or teach it to stop at once. Often a column has"
            " a different name in part of the file.",
            fix=join_fixes(
                build_view_fix(flagged.examples[0].location, data_quality.EMPTY), evidence.allow(data_quality.EMPTY)
            ),
        )


def _is_empty(checked: CheckedRow, row: DataRow) -> bool:
    if row.ids is not None:
        return len(row.ids) == 0
    return not any(text.strip() for _who, text in checked.texts)


def _build_repair_fix(flagged: FlaggedRows, formats: str) -> Fix:
    """Deletes a few lines of one file, or else keeps those that can be read and fit the format."""
    first = flagged.examples[0].location
    fits = build_fit_filter(formats)
    if not has_json_lines(first) or fits is None:
        return data_quality.BROKEN.fix("names", file=first.file)
    if flagged.count <= len(flagged.examples) and {each.location.file for each in flagged.examples} == {first.file}:
        lines = format_sed_script("d", (each.location.line for each in flagged.examples))
        repair = data_quality.BROKEN.fix("delete", script=lines, file=first.file)
    else:
        keep = f"fromjson? | objects | select({fits})"
        repair = data_quality.BROKEN.fix("keep", filter=keep, file=first.file, kept=name_output(first, "kept"))
    return join_fixes(build_view_fix(flagged.examples[0].location, data_quality.BROKEN), repair)


def build_view_fix(location: RowLocation, diagnosis: Diagnosis) -> Fix:
    """A command that shows the row."""
    if location.unit != "line" or location.file.endswith(COMPRESSED_SUFFIXES):
        return diagnosis.fix("rows", file=location.file)
    return diagnosis.fix("line", script=format_sed_script("p", [location.line]), file=location.file)
