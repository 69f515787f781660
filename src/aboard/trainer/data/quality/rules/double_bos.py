"""Two begin-of-sequence tokens: the template writes one, and something else adds another."""

from collections.abc import Iterator

from aboard.diagnoses import NO_FIX, Finding, Severity, join_fixes
from aboard.diagnoses.untrusted import NO_TEXT
from aboard.trainer.data.quality.data_evidence import SIGNIFICANT_SHARE, DataEvidence, format_locations, format_share
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.row_statistics import CheckedRow, RowFlag
from aboard.trainer.data.rows import EncodedRow
from aboard.trainer.diagnoses import data_quality

DOUBLE_BOS = "double-bos"


def inspect_row(checked: CheckedRow, settings: EncodingSettings) -> Iterator[RowFlag]:
    encoded = checked.encoded
    # If begin and end are the same token (gpt2), an empty document may precede.
    if not isinstance(encoded, EncodedRow) or settings.bos is None or settings.bos in settings.stops:
        return
    if len(encoded.ids) > 1 and encoded.ids[0] == encoded.ids[1] == settings.bos:
        yield DOUBLE_BOS, NO_TEXT


def check_double_bos(evidence: DataEvidence) -> Iterator[Finding]:
    """The model never saw two begin tokens in pretraining and never sees two at inference."""
    flagged, rows = evidence.statistics.find_flagged(DOUBLE_BOS), evidence.statistics.encoded
    if flagged:
        fix = NO_FIX
        if evidence.statistics.of("chat"):
            fix = data_quality.DOUBLE_BOS.fix("chat", again=evidence.again("template", "FILE"))
        yield data_quality.DOUBLE_BOS.finding(
            severity=Severity.BLOCK if flagged.count >= SIGNIFICANT_SHARE * rows else Severity.WARN,
            nodes=(),
            seen=f"{format_share(flagged.count, rows)} begin with two begin-of-sequence tokens:"
            f" {format_locations(flagged)}",
            why="The model never sees two in a row in pretraining or inference, so its answers silently get worse.",
            fix=join_fixes(fix, evidence.allow(data_quality.DOUBLE_BOS)),
        )
