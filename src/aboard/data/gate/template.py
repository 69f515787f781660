"""Chat templates that don't show which tokens are the model's own."""

from collections.abc import Iterator

from aboard.data.gate.evidence import MANY, Evidence, places, share
from aboard.data.gate.supervised import UNSUPERVISED
from aboard.data.gate.tally import Item, Sign
from aboard.data.gate.terms import Terms
from aboard.data.rows import Broken
from aboard.diagnoses import Finding, Fix, Severity, data_quality, join_fixes

UNTOLD = "untold"
# How the encoder says that a conversation was refused, or that its answers stand nowhere for certain.
TEMPLATE_CODES = ("row-template", "row-rewritten")
_NOTE = 200


def look(item: Item, _terms: Terms) -> Iterator[Sign]:
    if isinstance(item.encoded, Broken) and item.encoded.code in TEMPLATE_CODES:
        yield UNTOLD, item.encoded.why


def unmarked(evidence: Evidence) -> Iterator[Finding]:
    """Without markers, answers are found by what the template writes around them; where that fails, nothing is."""
    tally, terms = evidence.tally, evidence.terms
    untold, lost, chats = tally.seen(UNTOLD), tally.seen(UNSUPERVISED), tally.of("chat")
    if untold:
        yield data_quality.TEMPLATE.finding(
            severity=Severity.BLOCK if untold.count >= MANY * tally.rows else Severity.WARN,
            nodes=(),
            seen=f"the chat template doesn't show the answers of {share(untold.count, tally.rows)}:"
            f" {places(untold, _NOTE)}",
            why="They are left out: a loss on the wrong tokens teaches what no one wants to hear.",
            fix=_fix(evidence),
        )
    elif chats and lost.count == tally.encoded and terms.marked is False and terms.loss_on != "all":
        yield data_quality.TEMPLATE.finding(
            nodes=(),
            seen="the chat template has no {% generation %} markers, and no answer is found without them",
            why="No token would be supervised: training would run on nothing, and the curve would look fine.",
            fix=_fix(evidence),
        )


def _fix(evidence: Evidence) -> Fix:
    terms, given = evidence.terms, evidence.again("template", "FILE")
    if terms.marked is None:
        lines = [data_quality.TEMPLATE.fix("none", again=given)]
    else:
        lines = [data_quality.TEMPLATE.fix("markers", again=given)]
        if terms.loss_on == "answers":
            lines.append(data_quality.TEMPLATE.fix("last", again=evidence.again("loss-on", "last")))
    return join_fixes(*lines, evidence.allow(data_quality.TEMPLATE))
