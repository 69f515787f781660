"""Two begin-of-sequence tokens: the template writes one, and somebody adds another."""

from collections.abc import Iterator

from aboard.data.gate.evidence import MANY, Evidence, places, share
from aboard.data.gate.tally import Item, Sign
from aboard.data.gate.terms import Terms
from aboard.data.rows import Encoded
from aboard.diagnoses import NO_FIX, Finding, Severity, data_quality, join_fixes
from aboard.diagnoses.untrusted import NO_TEXT

DOUBLE_BOS = "double-bos"


def look(item: Item, terms: Terms) -> Iterator[Sign]:
    encoded = item.encoded
    # A tokenizer whose begin and end are one token (gpt2) may well have an empty document in front.
    if not isinstance(encoded, Encoded) or terms.bos is None or terms.bos in terms.stops:
        return
    if len(encoded.ids) > 1 and encoded.ids[0] == encoded.ids[1] == terms.bos:
        yield DOUBLE_BOS, NO_TEXT


def double_bos(evidence: Evidence) -> Iterator[Finding]:
    """The model was never shown two, and is not shown two when it is used."""
    seen, rows = evidence.tally.seen(DOUBLE_BOS), evidence.tally.encoded
    if seen:
        fix = NO_FIX
        if evidence.tally.of("chat"):
            fix = data_quality.DOUBLE_BOS.fix("chat", again=evidence.again("template", "FILE"))
        yield data_quality.DOUBLE_BOS.finding(
            severity=Severity.BLOCK if seen.count >= MANY * rows else Severity.WARN,
            nodes=(),
            seen=f"{share(seen.count, rows)} begin with two begin-of-sequence tokens: {places(seen)}",
            why="The model was never shown two, and won't be when it is used: answers get worse, and nobody sees why.",
            fix=join_fixes(fix, evidence.allow(data_quality.DOUBLE_BOS)),
        )
