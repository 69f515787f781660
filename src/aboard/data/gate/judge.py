"""All rules of the gate: what each row is looked at for, and what is made of the sum."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from aboard.core.cascade import cascade
from aboard.core.words import nearest, visible
from aboard.data.gate import bos, broken, cut, duplicates, guessed, outliers, specials, stops, supervised, template
from aboard.data.gate.evidence import Evidence
from aboard.data.gate.seen import Example
from aboard.data.gate.tally import Item, Look, Tally, count
from aboard.data.gate.terms import Terms
from aboard.diagnoses import Finding, Fix, InputError, Problem, data, data_quality, worst_first
from aboard.diagnoses.catalogue import diagnoses_in

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
    data_quality.EMPTY.code: (broken.EMPTY,),
    data_quality.TEMPLATE.code: (template.UNTOLD, supervised.UNSUPERVISED),
    data_quality.NO_LOSS.code: (supervised.UNSUPERVISED,),
    data_quality.EOS.code: (stops.HIDDEN, stops.ENDLESS),
    data_quality.DOUBLE_BOS.code: (bos.DOUBLE_BOS,),
    data_quality.CUT.code: (cut.LOST, cut.CUT),
    data_quality.SPECIAL_TEXT.code: (specials.SPECIAL,),
    data_quality.FORMAT.code: guessed.SIGNS,
}

CODES = tuple(story.code for story in diagnoses_in(data_quality))


def tally(items: Iterable[Item], terms: Terms, *, prints: bool = True) -> Tally:
    """What the gate must know of these rows; add up the tallies of all."""
    return count(items, terms, LOOKS, prints=prints)


def judge(evidence: Evidence, allowed: Iterable[str] = ()) -> list[Finding]:
    """Worst first; what is allowed is left out, and what another finding explains is folded under it."""
    passed = frozenset(allowed)
    every = [finding for rule in RULES for finding in rule(evidence) if finding.code not in passed]
    return worst_first(cascade(every, diagnoses_in(data_quality)))


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
        Problem(where="--allow", seen=f"the gate has no code '{visible(code)}'", fix=_known(code))
        for code in given
        if code not in CODES
    ]
    if problems:
        raise InputError(data.ALLOW, problems)
    return given


def _known(code: str) -> Fix:
    near = nearest(code, CODES)
    return data.ALLOW.fix("near", code=near) if near else data.ALLOW.fix("known", codes=CODES)
