"""Chat templates that don't show which tokens are the model's own."""

from collections.abc import Iterator

from aboard.data.quality.data_evidence import SIGNIFICANT_SHARE, DataEvidence, format_locations, format_share
from aboard.data.quality.encoding_settings import EncodingSettings
from aboard.data.quality.row_statistics import CheckedRow, RowFlag
from aboard.data.quality.rules.unsupervised_rows import UNSUPERVISED
from aboard.data.rows import InvalidRow
from aboard.diagnoses import Finding, Fix, Severity, join_fixes
from aboard.diagnoses.trainer import data_quality

ANSWERS_NOT_FOUND = "untold"
# How the encoder says that a conversation was refused, or that its answers stand nowhere for certain.
TEMPLATE_CODES = ("row-template", "row-rewritten")
_NOTE = 200


def inspect_row(item: CheckedRow, _terms: EncodingSettings) -> Iterator[RowFlag]:
    if isinstance(item.encoded, InvalidRow) and item.encoded.code in TEMPLATE_CODES:
        yield ANSWERS_NOT_FOUND, item.encoded.why


def check_template(evidence: DataEvidence) -> Iterator[Finding]:
    """Without markers, answers are found by what the template writes around them; where that fails, nothing is."""
    tally, terms = evidence.tally, evidence.terms
    flagged, unsupervised, chats = tally.seen(ANSWERS_NOT_FOUND), tally.seen(UNSUPERVISED), tally.of("chat")
    if flagged:
        yield data_quality.TEMPLATE.finding(
            severity=Severity.BLOCK if flagged.count >= SIGNIFICANT_SHARE * tally.rows else Severity.WARN,
            nodes=(),
            seen=f"the chat template doesn't show the answers of {format_share(flagged.count, tally.rows)}:"
            f" {format_locations(flagged, _NOTE)}",
            why="They are left out: a loss on the wrong tokens teaches what no one wants to hear.",
            fix=_build_fix(evidence),
        )
    elif chats and unsupervised.count == tally.encoded and terms.marked is False and terms.loss_on != "all":
        yield data_quality.TEMPLATE.finding(
            nodes=(),
            seen="the chat template has no {% generation %} markers, and no answer is found without them",
            why="No token would be supervised: training would run on nothing, and the curve would look fine.",
            fix=_build_fix(evidence),
        )


def _build_fix(evidence: DataEvidence) -> Fix:
    terms, with_template = evidence.terms, evidence.again("template", "FILE")
    if terms.marked is None:
        lines = [data_quality.TEMPLATE.fix("none", again=with_template)]
    else:
        lines = [data_quality.TEMPLATE.fix("markers", again=with_template)]
        if terms.loss_on == "answers":
            lines.append(data_quality.TEMPLATE.fix("last", again=evidence.again("loss-on", "last")))
    return join_fixes(*lines, evidence.allow(data_quality.TEMPLATE))
