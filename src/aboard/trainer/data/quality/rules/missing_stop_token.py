"""The stop token of answers: if it is never supervised, the model never learns to stop."""

from collections.abc import Iterator

from aboard.diagnoses import NO_FIX, Finding, Fix, Severity, join_fixes
from aboard.diagnoses.untrusted import NO_TEXT, escape_text
from aboard.trainer.data.quality.data_evidence import SIGNIFICANT_SHARE, DataEvidence, format_locations, format_share
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.row_statistics import CheckedRow, RowFlag
from aboard.trainer.data.quality.rules.unsupervised_rows import UNSUPERVISED
from aboard.trainer.data.rows import EncodedRow
from aboard.trainer.diagnoses import data_quality

MASKED = 0.9
ENDLESS, HIDDEN = "endless", "stop-hidden"


def inspect_row(checked: CheckedRow, settings: EncodingSettings) -> Iterator[RowFlag]:
    encoded = checked.encoded
    if not isinstance(encoded, EncodedRow) or not settings.stops or not encoded.mask.any():
        return
    supervised = encoded.ids[encoded.mask]
    # Fast path: most answers end in a stop token.
    if int(supervised[-1]) in settings.stops or any((supervised == stop).any() for stop in settings.stops):
        return
    yield ENDLESS, NO_TEXT
    after = int(encoded.mask.nonzero()[0][-1]) + 1
    if after < len(encoded.ids) and int(encoded.ids[after]) in settings.stops:
        yield HIDDEN, NO_TEXT


def check_stop_token(evidence: DataEvidence) -> Iterator[Finding]:
    """Stop tokens that are masked, omitted by the template, or equal to padding: generation then runs to its limit."""
    statistics, settings = evidence.statistics, evidence.settings
    flagged, hidden = statistics.find_flagged(ENDLESS), statistics.find_flagged(HIDDEN)
    # A truncated row still has a stop token; another rule reports truncation.
    rows = statistics.encoded - statistics.find_flagged(UNSUPERVISED).count
    if settings.tokenizer is not None and statistics.encoded and not settings.stops:
        yield data_quality.EOS.finding(
            severity=Severity.WARN,
            nodes=(),
            seen=f"{escape_text(settings.tokenizer)} has no end-of-sequence token",
            why="No row can end with such a token, so the model can't learn to stop.",
            fix=data_quality.EOS.fix("no-token"),
        )
    if flagged.count >= SIGNIFICANT_SHARE * rows and flagged:
        named = " or ".join(name.visible() for name in settings.stop_names) or "the end token"
        masked = (
            f"; in {format_share(hidden.count, flagged.count, 'such rows')} it is present but masked" if hidden else ""
        )
        # Pre-tokenized data counts as answers if a large part of it is masked.
        answers = statistics.of("chat", "pair") > 0 or statistics.supervised < MASKED * statistics.tokens.total
        yield data_quality.EOS.finding(
            severity=Severity.BLOCK if answers and flagged.count == rows else Severity.WARN,
            nodes=(),
            seen=f"{format_share(flagged.count, rows)} with a loss don't supervise {named}:"
            f" {format_locations(flagged)}{masked}",
            why="The model never learns to stop: it answers correctly, then continues until the token limit."
            if answers
            else "Packed documents run into each other, and the model doesn't learn where one ends.",
            fix=_build_fix(evidence, hidden=bool(hidden)),
        )


def _build_fix(evidence: DataEvidence, *, hidden: bool) -> Fix:
    with_template, line = evidence.again("template", "FILE"), NO_FIX
    if hidden and evidence.settings.marked:
        line = data_quality.EOS.fix("hidden", again=with_template)
    elif evidence.statistics.of("chat"):
        line = data_quality.EOS.fix("chat", again=with_template)
    return join_fixes(line, evidence.allow(data_quality.EOS))
