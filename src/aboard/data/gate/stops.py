"""The token that ends an answer: if it is never supervised, the model never learns to stop."""

from collections.abc import Iterator

from aboard.data.gate.evidence import MANY, Evidence, places, share
from aboard.data.gate.supervised import UNSUPERVISED
from aboard.data.gate.tally import Item, Sign
from aboard.data.gate.terms import Terms
from aboard.data.rows import Encoded
from aboard.diagnoses import NO_FIX, Finding, Fix, Severity, data_quality, join_fixes
from aboard.diagnoses.untrusted import NO_TEXT, visible

MASKED = 0.9
ENDLESS, HIDDEN = "endless", "stop-hidden"


def look(item: Item, terms: Terms) -> Iterator[Sign]:
    encoded = item.encoded
    if not isinstance(encoded, Encoded) or not terms.stops or not encoded.mask.any():
        return
    supervised = encoded.ids[encoded.mask]
    # Most answers end in one: then the last token tells, and the others need no look.
    if int(supervised[-1]) in terms.stops or any((supervised == stop).any() for stop in terms.stops):
        return
    yield ENDLESS, NO_TEXT
    after = int(encoded.mask.nonzero()[0][-1]) + 1
    if after < len(encoded.ids) and int(encoded.ids[after]) in terms.stops:
        yield HIDDEN, NO_TEXT


def never_stops(evidence: Evidence) -> Iterator[Finding]:
    """Masked, left out by the template, or the same as padding: generation then runs to its limit."""
    tally, terms = evidence.tally, evidence.terms
    seen, hidden = tally.seen(ENDLESS), tally.seen(HIDDEN)
    # A row whose end is cut off has one all the same: another rule tells of that.
    rows = tally.encoded - tally.seen(UNSUPERVISED).count
    if terms.tokenizer is not None and tally.encoded and not terms.stops:
        yield data_quality.EOS.finding(
            severity=Severity.WARN,
            nodes=(),
            seen=f"{visible(terms.tokenizer)} has no end-of-sequence token",
            why="No row can end in one, so a model that is trained on them can't learn to stop.",
            fix=data_quality.EOS.fix("no-token"),
        )
    if seen.count >= MANY * rows and seen:
        named = " or ".join(name.visible() for name in terms.stop_names) or "the end token"
        masked = f"; in {share(hidden.count, seen.count, 'of these')} it is there, but masked" if hidden else ""
        # Tokens that somebody else prepared are answers if a good part of them is masked.
        answers = tally.of("chat", "pair") > 0 or tally.supervised < MASKED * tally.tokens.total
        yield data_quality.EOS.finding(
            severity=Severity.BLOCK if answers and seen.count == rows else Severity.WARN,
            nodes=(),
            seen=f"{share(seen.count, rows)} with a loss never supervise {named}: {places(seen)}{masked}",
            why="The model is never taught to stop: it answers rightly and goes on until the limit of tokens."
            if answers
            else "Documents that are packed run into each other, and the model isn't taught where one ends.",
            fix=_fix(evidence, hidden=bool(hidden)),
        )


def _fix(evidence: Evidence, *, hidden: bool) -> Fix:
    given, line = evidence.again("template", "FILE"), NO_FIX
    if hidden and evidence.terms.marked:
        line = data_quality.EOS.fix("hidden", again=given)
    elif evidence.tally.of("chat"):
        line = data_quality.EOS.fix("chat", again=given)
    return join_fixes(line, evidence.allow(data_quality.EOS))
