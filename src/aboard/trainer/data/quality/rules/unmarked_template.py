"""Chat templates that don't mark the assistant's tokens."""

from collections.abc import Iterator

from aboard.diagnoses import Finding, Fix, Severity, join_fixes
from aboard.trainer.data.quality.data_evidence import SIGNIFICANT_SHARE, DataEvidence, format_locations, format_share
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.row_statistics import CheckedRow, RowFlag
from aboard.trainer.data.quality.rules.unsupervised_rows import UNSUPERVISED
from aboard.trainer.data.rows import InvalidRow
from aboard.trainer.diagnoses import data_quality

ANSWERS_NOT_FOUND = "untold"
# The encoder's codes for a conversation that the template rejects, or whose answers can't be located.
TEMPLATE_CODES = ("row-template", "row-rewritten")
_NOTE = 200


def inspect_row(checked: CheckedRow, _settings: EncodingSettings) -> Iterator[RowFlag]:
    if isinstance(checked.encoded, InvalidRow) and checked.encoded.code in TEMPLATE_CODES:
        yield ANSWERS_NOT_FOUND, checked.encoded.why


def check_template(evidence: DataEvidence) -> Iterator[Finding]:
    """Without markers, answers are located by the text around them; rows where that fails are left out."""
    statistics, settings = evidence.statistics, evidence.settings
    flagged, unsupervised = statistics.find_flagged(ANSWERS_NOT_FOUND), statistics.find_flagged(UNSUPERVISED)
    if flagged:
        yield data_quality.TEMPLATE.finding(
            severity=Severity.BLOCK if flagged.count >= SIGNIFICANT_SHARE * statistics.rows else Severity.WARN,
            nodes=(),
            seen=f"in {format_share(flagged.count, statistics.rows)}, the answer can't be found in the rendered"
            f" template: {format_locations(flagged, _NOTE)}",
            why="These rows are left out, because a loss on the wrong tokens would train the model on text that"
            " isn't an answer.",
            fix=_build_fix(evidence),
        )
    elif (
        statistics.of("chat")
        and unsupervised.count == statistics.encoded
        and settings.marked is False
        and settings.loss_on != "all"
    ):
        yield data_quality.TEMPLATE.finding(
            nodes=(),
            seen="the chat template has no {% generation %} markers, and no answer can be located without them",
            why="No token would be supervised: training would learn nothing, and the loss curve would look normal.",
            fix=_build_fix(evidence),
        )


def _build_fix(evidence: DataEvidence) -> Fix:
    settings, with_template = evidence.settings, evidence.again("template", "FILE")
    if settings.marked is None:
        lines = [data_quality.TEMPLATE.fix("none", again=with_template)]
    else:
        lines = [data_quality.TEMPLATE.fix("markers", again=with_template)]
        if settings.loss_on == "answers":
            lines.append(data_quality.TEMPLATE.fix("last", again=evidence.again("loss-on", "last")))
    return join_fixes(*lines, evidence.allow(data_quality.TEMPLATE))
