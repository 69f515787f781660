"""Answers that `max_length` cuts off."""

from collections.abc import Iterator

from aboard.data.gate.evidence import MANY, Evidence, places, share
from aboard.data.gate.tally import Item, Sign
from aboard.data.gate.terms import Terms
from aboard.data.rows import Encoded, Row
from aboard.diagnoses import Finding, Fix, Severity, data_quality, join_fixes
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted

CUT, LOST = "cut", "answer-lost"
# So many rows may lose their end before a run is stopped for it: long tails are common, and often meant to be cut.
FEW = 0.05
_ROUND = 256


def look(item: Item, terms: Terms) -> Iterator[Sign]:
    encoded, limit = item.encoded, terms.max_length
    if limit is None or not isinstance(encoded, Encoded) or not isinstance(item.row, Row):
        return
    if item.row.kind in {"chat", "pair"}:
        yield from cut_signs(encoded, limit)


def cut_signs(encoded: Encoded, limit: int) -> Iterator[Sign]:
    """Of a row that is truncated; a text goes on in the next bin instead."""
    if len(encoded.ids) > limit and encoded.mask[limit:].any():
        yield CUT, Untrusted(f"{len(encoded.ids):,} tokens")
        if not encoded.mask[:limit].any():
            yield LOST, NO_TEXT


def answers_cut(evidence: Evidence) -> Iterator[Finding]:
    """What is cut off is the end of the answer, and with it the token that says stop."""
    tally, limit = evidence.tally, evidence.terms.max_length
    seen, lost, rows = tally.seen(CUT), tally.seen(LOST), tally.encoded
    if seen and limit is not None:
        whole = f"; nothing of the answer is left in {lost.count:,} of them" if lost else ""
        much = seen.count >= FEW * rows or lost.count >= MANY * rows
        yield data_quality.CUT.finding(
            severity=Severity.BLOCK if much else Severity.WARN,
            nodes=(),
            seen=f"answers of {share(seen.count, rows)} are cut off at {limit:,} tokens: {places(seen)}{whole}",
            why="A model that is shown answers without an end learns to break off, or not to stop.",
            fix=join_fixes(*_longer(evidence, limit), evidence.allow(data_quality.CUT)),
        )


def _longer(evidence: Evidence, limit: int) -> Iterator[Fix]:
    """How long would do for nearly all, and for all."""
    tokens = evidence.tally.tokens
    most, every = (-(-length // _ROUND) * _ROUND for length in (tokens.percentile(0.99), tokens.longest))
    if limit < most < every:
        yield data_quality.CUT.fix("most", again=evidence.again("max-length", most), length=most)
    yield data_quality.CUT.fix("every", again=evidence.again("max-length", every), length=every)
