"""Two begin-of-sequence tokens: the template writes one, and somebody adds another."""

from collections.abc import Iterator

from aboard.data.quality.data_evidence import SIGNIFICANT_SHARE, DataEvidence, format_locations, format_share
from aboard.data.quality.encoding_settings import EncodingSettings
from aboard.data.quality.row_statistics import CheckedRow, RowFlag
from aboard.data.rows import EncodedRow
from aboard.diagnoses import NO_FIX, Finding, Severity, join_fixes
from aboard.diagnoses.trainer import data_quality
from aboard.diagnoses.untrusted import NO_TEXT

DOUBLE_BOS = "double-bos"


def inspect_row(item: CheckedRow, terms: EncodingSettings) -> Iterator[RowFlag]:
    encoded = item.encoded
    # A tokenizer whose begin and end are one token (gpt2) may well have an empty document in front.
    if not isinstance(encoded, EncodedRow) or terms.bos is None or terms.bos in terms.stops:
        return
    if len(encoded.ids) > 1 and encoded.ids[0] == encoded.ids[1] == terms.bos:
        yield DOUBLE_BOS, NO_TEXT


def check_double_bos(evidence: DataEvidence) -> Iterator[Finding]:
    """The model was never shown two, and is not shown two when it is used."""
    flagged, rows = evidence.tally.seen(DOUBLE_BOS), evidence.tally.encoded
    if flagged:
        fix = NO_FIX
        if evidence.tally.of("chat"):
            fix = data_quality.DOUBLE_BOS.fix("chat", again=evidence.again("template", "FILE"))
        yield data_quality.DOUBLE_BOS.finding(
            severity=Severity.BLOCK if flagged.count >= SIGNIFICANT_SHARE * rows else Severity.WARN,
            nodes=(),
            seen=f"{format_share(flagged.count, rows)} begin with two begin-of-sequence tokens:"
            f" {format_locations(flagged)}",
            why="The model was never shown two, and won't be when it is used: answers get worse, and nobody sees why.",
            fix=join_fixes(fix, evidence.allow(data_quality.DOUBLE_BOS)),
        )
