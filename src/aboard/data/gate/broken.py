"""Rows that can't be read, and rows with nothing in them."""

from collections.abc import Iterator

from aboard.data.gate.evidence import MANY, PACKED, Evidence, places, script, share
from aboard.data.gate.seen import Seen
from aboard.data.gate.tally import Item, Sign
from aboard.data.gate.template import TEMPLATE_CODES
from aboard.data.gate.terms import Terms
from aboard.data.rows import Row
from aboard.diagnoses import NO_FIX, Diagnosis, Finding, Fix, Severity, data_quality, join_fixes
from aboard.diagnoses.untrusted import NO_TEXT, visible

BROKEN, EMPTY = "broken", "empty"


def look(item: Item, _terms: Terms) -> Iterator[Sign]:
    broken = item.broken
    if broken is not None and broken.code not in TEMPLATE_CODES:
        yield EMPTY if broken.code == "row-empty" else BROKEN, broken.why
    elif isinstance(item.row, Row) and _is_empty(item, item.row):
        yield EMPTY, NO_TEXT


def no_rows(evidence: Evidence) -> Iterator[Finding]:
    """A run over nothing ends at once, or never starts."""
    if evidence.tally.rows == 0:
        yield data_quality.NO_ROWS.finding(
            nodes=(),
            seen=f"{visible(', '.join(evidence.files), 300)}: there is no row in it",
            why="There is nothing to train on.",
            fix=data_quality.NO_ROWS.fix(file=evidence.files[0]) if evidence.files else NO_FIX,
        )


def unreadable(evidence: Evidence) -> Iterator[Finding]:
    """A line that is no row is never there on purpose: a copy that broke off, two files in one, a wrong format."""
    seen = evidence.tally.seen(BROKEN)
    if seen:
        # Where nothing can be read it is another kind of file, and deleting lines is no help.
        mend = _mend(seen) if seen.count < evidence.tally.rows else _look_at(seen, data_quality.BROKEN)
        yield data_quality.BROKEN.finding(
            nodes=(),
            seen=f"{share(seen.count, evidence.tally.rows)} can't be read: {places(seen)}",
            why="They would be left out of training. The last line of a file that is broken often means a copy that"
            " broke off: then rows are missing that nobody can count.",
            fix=join_fixes(mend, evidence.allow(data_quality.BROKEN)),
        )


def empty(evidence: Evidence) -> Iterator[Finding]:
    """An empty row teaches at most to say nothing."""
    seen = evidence.tally.seen(EMPTY)
    if seen:
        much = seen.count >= MANY * evidence.tally.rows
        yield data_quality.EMPTY.finding(
            severity=Severity.BLOCK if much else Severity.WARN,
            nodes=(),
            seen=f"{share(seen.count, evidence.tally.rows)} hold no text at all: {places(seen)}",
            why="They count as rows and teach nothing, or to end at once. Often a column has another name in a part of"
            " the file.",
            fix=join_fixes(_look_at(seen, data_quality.EMPTY), evidence.allow(data_quality.EMPTY)),
        )


def _is_empty(item: Item, row: Row) -> bool:
    if row.ids is not None:
        return len(row.ids) == 0
    return not any(text.strip() for _who, text in item.texts)


def _mend(seen: Seen) -> Fix:
    """Few lines of one file can be deleted; of more, what can be read is kept."""
    first = seen.examples[0].where
    if first.unit != "line" or first.file.endswith(PACKED):
        return data_quality.BROKEN.fix("names", file=first.file)
    if seen.count <= len(seen.examples) and {each.where.file for each in seen.examples} == {first.file}:
        lines = script("d", (each.where.line for each in seen.examples))
        mend = data_quality.BROKEN.fix("delete", script=lines, file=first.file)
    else:
        kept = first.file.raw().removesuffix(".jsonl") + ".kept.jsonl"
        mend = data_quality.BROKEN.fix("keep", file=first.file, kept=kept)
    return join_fixes(_look_at(seen, data_quality.BROKEN), mend)


def _look_at(seen: Seen, diagnosis: Diagnosis) -> Fix:
    where = seen.examples[0].where
    if where.unit != "line" or where.file.endswith(PACKED):
        return diagnosis.fix("rows", file=where.file)
    return diagnosis.fix("line", script=script("p", [where.line]), file=where.file)
