"""Rows without a supervised token."""

from collections.abc import Iterator

from aboard.diagnoses import NO_FIX, Finding, Fix, Severity, join_fixes
from aboard.diagnoses.untrusted import Untrusted
from aboard.trainer.data.quality.data_evidence import SIGNIFICANT_SHARE, DataEvidence, format_locations, format_share
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.row_statistics import CheckedRow, RowFlag
from aboard.trainer.data.rows import DataRow, EncodedRow
from aboard.trainer.diagnoses import data_quality

UNSUPERVISED = "unsupervised"


def inspect_row(checked: CheckedRow, _settings: EncodingSettings) -> Iterator[RowFlag]:
    if isinstance(checked.encoded, EncodedRow) and not checked.encoded.mask.any():
        yield UNSUPERVISED, Untrusted(_explain_missing_loss(checked.row) if isinstance(checked.row, DataRow) else "")


def check_supervision(evidence: DataEvidence) -> Iterator[Finding]:
    """Such rows cost time and teach nothing, while the loss curve looks normal."""
    flagged, rows = evidence.statistics.find_flagged(UNSUPERVISED), evidence.statistics.encoded
    if flagged:
        yield data_quality.NO_LOSS.finding(
            severity=Severity.BLOCK if flagged.count >= SIGNIFICANT_SHARE * rows else Severity.WARN,
            nodes=(),
            seen=f"{format_share(flagged.count, rows)} have no supervised token: {format_locations(flagged)}",
            why="None of these rows' tokens enters the loss. The rows cost time and teach nothing, while the loss"
            " curve looks normal.",
            fix=_build_fix(evidence),
        )


def _explain_missing_loss(row: DataRow) -> str:
    if row.kind == "chat":
        answers = [each for each in row.messages or () if each.get("role") == "assistant"]
        if not answers:
            return "no assistant message"
        return "" if any(each.get("content") or each.get("tool_calls") for each in answers) else "the answer is empty"
    return "the answer is empty" if row.kind == "pair" and not (row.completion or "").strip() else ""


def _build_fix(evidence: DataEvidence) -> Fix:
    line = NO_FIX
    notes = {each.note for each in evidence.statistics.find_flagged(UNSUPERVISED).examples}
    if evidence.settings.loss_on != "all" and notes == {""}:
        line = data_quality.NO_LOSS.fix("all", again=evidence.again("loss-on", "all"))
    elif "no assistant message" in notes and evidence.format == "messages":
        file = evidence.statistics.find_flagged(UNSUPERVISED).examples[0].location.file
        line = data_quality.NO_LOSS.fix("answered", file=file)
    return join_fixes(line, evidence.allow(data_quality.NO_LOSS))
