"""Control tokens that stand in the data as text."""

from collections.abc import Iterator
from re import sub

from aboard.data.gate.evidence import PACKED, Evidence, places, share
from aboard.data.gate.seen import Example
from aboard.data.gate.tally import Item, Sign
from aboard.data.gate.terms import Terms
from aboard.diagnoses import NO_FIX, Finding, Fix, data_quality, join_fixes
from aboard.diagnoses.untrusted import Untrusted

SPECIAL = "special-text"
# No control token of a real tokenizer is longer.
_LONGEST = 200


def look(item: Item, terms: Terms) -> Iterator[Sign]:
    if terms.special_text is None:
        return
    for who, text in item.texts:
        # Most texts don't even have a letter that one begins with, and to see that is quick.
        if not any(start in text for start in terms.special_starts):
            continue
        found = terms.special_text.search(text)
        if found:
            yield SPECIAL, Untrusted(f"{found[0]} in the {who}")
            return


def special_text(evidence: Evidence) -> Iterator[Finding]:
    """A tokenizer can't tell the text from the token: whoever writes it in a prompt can speak as somebody else."""
    seen = evidence.tally.seen(SPECIAL)
    if seen:
        yield data_quality.SPECIAL_TEXT.finding(
            nodes=(),
            seen=f"{share(seen.count, evidence.tally.rows)} have a control token in their text: {places(seen)}",
            why="The tokenizer makes the control token of it: a turn ends in the middle of a sentence, or a user"
            " speaks as the system. Or the rows went through a template before, and would twice.",
            fix=join_fixes(_without(seen.examples[0]), evidence.allow(data_quality.SPECIAL_TEXT)),
        )


def _without(found: Example) -> Fix:
    """A line for sed, where there are lines; brackets and dots are signs to it."""
    token = found.note.raw().rpartition(" in the ")[0]
    if found.where.unit != "line" or found.where.file.endswith(PACKED) or len(token) > _LONGEST:
        return NO_FIX
    token = sub(r"([][\\/.*^$])", r"\\\1", token)
    return data_quality.SPECIAL_TEXT.fix("mend", script=f"s/{token}//g", file=found.where.file)
