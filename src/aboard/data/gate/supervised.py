"""Rows that the loss never sees: no token of them is supervised."""

from collections.abc import Iterator

from aboard.data.gate.evidence import MANY, Evidence, places, share
from aboard.data.gate.tally import Item, Sign
from aboard.data.gate.terms import Terms
from aboard.data.rows import Encoded, Row
from aboard.diagnoses import NO_FIX, Finding, Fix, Severity, data_quality, join_fixes
from aboard.diagnoses.untrusted import Untrusted

UNSUPERVISED = "unsupervised"


def look(item: Item, _terms: Terms) -> Iterator[Sign]:
    if isinstance(item.encoded, Encoded) and not item.encoded.mask.any():
        yield UNSUPERVISED, Untrusted(_why(item.row) if isinstance(item.row, Row) else "")


def no_loss(evidence: Evidence) -> Iterator[Finding]:
    """Such rows cost time and teach nothing, and the curve looks fine."""
    seen, rows = evidence.tally.seen(UNSUPERVISED), evidence.tally.encoded
    if seen:
        yield data_quality.NO_LOSS.finding(
            severity=Severity.BLOCK if seen.count >= MANY * rows else Severity.WARN,
            nodes=(),
            seen=f"{share(seen.count, rows)} have no supervised token: {places(seen)}",
            why="The loss is taken of none of their tokens, so they cost time and teach nothing, while the curve of"
            " the others looks fine.",
            fix=_fix(evidence),
        )


def _why(row: Row) -> str:
    if row.kind == "chat":
        answers = [each for each in row.messages or () if each.get("role") == "assistant"]
        if not answers:
            return "nobody answers"
        return "" if any(each.get("content") or each.get("tool_calls") for each in answers) else "the answer is empty"
    return "the answer is empty" if row.kind == "pair" and not (row.completion or "").strip() else ""


def _fix(evidence: Evidence) -> Fix:
    line = NO_FIX
    notes = {each.note for each in evidence.tally.seen(UNSUPERVISED).examples}
    if evidence.terms.loss_on != "all" and notes == {""}:
        line = data_quality.NO_LOSS.fix("all", again=evidence.again("loss-on", "all"))
    elif "nobody answers" in notes and evidence.format == "messages":
        file = evidence.tally.seen(UNSUPERVISED).examples[0].where.file
        line = data_quality.NO_LOSS.fix("answered", file=file)
    return join_fixes(line, evidence.allow(data_quality.NO_LOSS))
