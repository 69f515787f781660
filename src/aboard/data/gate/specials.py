"""Control tokens that stand in the data as text."""

from collections.abc import Iterator
from re import sub
from shlex import quote

from aboard.data.gate.evidence import PACKED, Evidence, places, share
from aboard.data.gate.seen import Example
from aboard.data.gate.tally import Item, Sign
from aboard.data.gate.terms import Terms
from aboard.diagnoses import Finding, Severity

SPECIAL = "special-text"


def look(item: Item, terms: Terms) -> Iterator[Sign]:
    if terms.special_text is None:
        return
    for who, text in item.texts:
        # Most texts don't even have a letter that one begins with, and to see that is quick.
        if not any(start in text for start in terms.special_starts):
            continue
        found = terms.special_text.search(text)
        if found:
            yield SPECIAL, f"{found[0]} in the {who}"
            return


def special_text(evidence: Evidence) -> Iterator[Finding]:
    """A tokenizer can't tell the text from the token: whoever writes it in a prompt can speak as somebody else."""
    seen = evidence.tally.seen(SPECIAL)
    if seen:
        yield Finding(
            code="data-special-text",
            severity=Severity.WARN,
            nodes=(),
            seen=f"{share(seen.count, evidence.tally.rows)} have a control token in their text: {places(seen)}",
            why="The tokenizer makes the control token of it: a turn ends in the middle of a sentence, or a user"
            " speaks as the system. Or the rows went through a template before, and would twice.",
            fix=_without(seen.examples[0]) + evidence.allow("data-special-text"),
        )


def _without(found: Example) -> str:
    """A line for sed, where there are lines; brackets and dots are signs to it."""
    if found.where.unit != "line" or found.where.file.endswith(PACKED):
        return ""
    token = sub(r"([][\\/.*^$])", r"\\\1", found.note.partition(" in the ")[0])
    words = f"sed {quote(f's/{token}//g')} {quote(found.where.file)} > mended.jsonl"
    return f"{words}    # takes that token out\n"
