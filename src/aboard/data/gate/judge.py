"""All rules of the gate: what each row is looked at for, and what is made of the sum."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from aboard.core.cascade import cascade
from aboard.core.words import did_you_mean, visible
from aboard.data.gate import bos, broken, cut, duplicates, guessed, outliers, specials, stops, supervised, template
from aboard.data.gate.evidence import Evidence
from aboard.data.gate.seen import Example
from aboard.data.gate.stories import STORIES
from aboard.data.gate.tally import Item, Look, Tally, count
from aboard.data.gate.terms import Terms
from aboard.diagnoses import Finding, InputError, Problem, worst_first

Rule: TypeAlias = Callable[[Evidence], Iterator[Finding]]

LOOKS: tuple[Look, ...] = (
    broken.look,
    template.look,
    supervised.look,
    stops.look,
    bos.look,
    cut.look,
    specials.look,
    guessed.look,
)

RULES: tuple[Rule, ...] = (
    broken.no_rows,
    broken.unreadable,
    broken.empty,
    template.unmarked,
    supervised.no_loss,
    stops.never_stops,
    bos.double_bos,
    cut.answers_cut,
    guessed.doubtful_format,
    duplicates.leaks,
    duplicates.duplicates,
    specials.special_text,
    outliers.outliers,
)

# The rows in which a finding of this code is to be seen.
SIGNS = {
    "data-empty": (broken.EMPTY,),
    "data-template": (
        template.UNTOLD,
        supervised.UNSUPERVISED,
    ),
    "data-no-loss": (supervised.UNSUPERVISED,),
    "data-eos": (stops.HIDDEN, stops.ENDLESS),
    "data-double-bos": (bos.DOUBLE_BOS,),
    "data-cut": (cut.LOST, cut.CUT),
    "data-special-text": (specials.SPECIAL,),
    "data-format": guessed.SIGNS,
}

CODES = tuple(story.code for story in STORIES)


def tally(items: Iterable[Item], terms: Terms, *, prints: bool = True) -> Tally:
    """What the gate must know of these rows; add up the tallies of all."""
    return count(items, terms, LOOKS, prints=prints)


def judge(evidence: Evidence, allowed: Iterable[str] = ()) -> list[Finding]:
    """Worst first; what is allowed is left out, and what another finding explains is folded under it."""
    passed = frozenset(allowed)
    every = [finding for rule in RULES for finding in rule(evidence) if finding.code not in passed]
    return worst_first(cascade(every, STORIES))


def examples(findings: Iterable[Finding], counted: Tally) -> dict[str, Example]:
    """For each finding that can be seen in a row, the first such row."""
    found = {}
    for finding in findings:
        seen = [example for sign in SIGNS.get(finding.code, ()) for example in counted.seen(sign).examples]
        if seen:
            found[finding.code] = seen[0]
    return found


def known_codes(allowed: Iterable[str]) -> tuple[str, ...]:
    """The codes as given; raises InputError for each that is none."""
    given = tuple(allowed)
    problems = [
        Problem(where="--allow", seen=f"the gate has no code '{visible(code)}'", fix=did_you_mean(code, CODES))
        for code in given
        if code not in CODES
    ]
    if problems:
        raise InputError("data-allow", problems)
    return given
