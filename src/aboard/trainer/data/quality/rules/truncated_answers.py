"""Answers that `max_length` truncates."""

from collections.abc import Iterator

from aboard.diagnoses import Finding, Fix, Severity, join_fixes
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.trainer.data.quality.data_evidence import SIGNIFICANT_SHARE, DataEvidence, format_locations, format_share
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.row_statistics import CheckedRow, RowFlag
from aboard.trainer.data.rows import DataRow, EncodedRow
from aboard.trainer.diagnoses import data_quality

CUT, LOST = "cut", "answer-lost"
# This share of rows may be truncated before the data check fails: long tails are common and often truncated on purpose.
TOLERATED_SHARE = 0.05
_ROUND = 256


def inspect_row(checked: CheckedRow, settings: EncodingSettings) -> Iterator[RowFlag]:
    encoded, limit = checked.encoded, settings.max_length
    if limit is None or not isinstance(encoded, EncodedRow) or not isinstance(checked.row, DataRow):
        return
    if checked.row.kind in {"chat", "pair"}:
        yield from flag_truncation(encoded, limit)


def flag_truncation(encoded: EncodedRow, limit: int) -> Iterator[RowFlag]:
    """Flags a row that is truncated; longer text continues in the next sequence instead."""
    if len(encoded.ids) > limit and encoded.mask[limit:].any():
        yield CUT, Untrusted(f"{len(encoded.ids):,} tokens")
        if not encoded.mask[:limit].any():
            yield LOST, NO_TEXT


def check_truncated_answers(evidence: DataEvidence) -> Iterator[Finding]:
    """Truncation removes the end of the answer, including its stop token."""
    statistics, limit = evidence.statistics, evidence.settings.max_length
    flagged, lost, rows = statistics.find_flagged(CUT), statistics.find_flagged(LOST), statistics.encoded
    if flagged and limit is not None:
        whole = f"; {lost.count:,} of them lose the whole answer" if lost else ""
        is_significant = flagged.count >= TOLERATED_SHARE * rows or lost.count >= SIGNIFICANT_SHARE * rows
        yield data_quality.CUT.finding(
            severity=Severity.BLOCK if is_significant else Severity.WARN,
            nodes=(),
            seen=f"the answers of {format_share(flagged.count, rows)} are truncated at {limit:,} tokens:"
            f" {format_locations(flagged)}{whole}",
            why="The model learns to break off answers, or not to stop.",
            fix=join_fixes(*_suggest_lengths(evidence, limit), evidence.allow(data_quality.CUT)),
        )


def _suggest_lengths(evidence: DataEvidence, limit: int) -> Iterator[Fix]:
    """Lengths that fit 99 % of the rows, and all of them."""
    tokens = evidence.statistics.tokens
    most, every = (-(-length // _ROUND) * _ROUND for length in (tokens.percentile(0.99), tokens.longest))
    if limit < most < every:
        yield data_quality.CUT.fix("most", again=evidence.again("max-length", most), length=most)
    yield data_quality.CUT.fix("every", again=evidence.again("max-length", every), length=every)
