"""What a check comes to: each subject's outcome, and the last line."""

from collections.abc import Mapping, Sequence
from enum import Enum

from aboard.checks.usual import together
from aboard.core.cluster import THIS_MACHINE
from aboard.core.facts import Facts
from aboard.core.nodeset import fold
from aboard.core.rule import Subject
from aboard.diagnoses import Finding, Severity
from aboard.lazy import dataclass
from aboard.ui.figures import many
from aboard.ui.marks import worst_of


class Status(Enum):
    """What a check says of a subject: nothing above info was found, something was, or nothing was tested."""

    PASSED = "passed"
    FINDINGS = "findings"
    NOT_TESTED = "not tested"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a subject came out; `untested` has the reason by node, `reason` that of a subject that was not tested."""

    subject: Subject
    status: Status
    untested: Mapping[str, str]
    reason: str = ""
    # On how many nodes it passed, where that is not all.
    where: str = ""


def subject_outcomes(
    facts: Facts, subjects: Sequence[Subject], by_subject: Mapping[str, Sequence[Finding]]
) -> list[Outcome]:
    """One for each subject that was asked, in their order.

    A finding that is folded under another subject's spoils its own all the same. A subject that no node was tested for
    has not passed.
    """
    worst = worst_of(by_subject)
    reached = [node.name for node in facts.reached()]
    outcomes = []
    for subject in (each for each in subjects if each.name in worst):
        untested = {name: why for name, why in subject.untested(facts).items() if name in reached}
        tested = len(reached) - len(untested)
        status, reason, where = Status.PASSED, "", ""
        if any(severity is not Severity.INFO for severity in worst[subject.name].values()):
            status = Status.FINDINGS
        elif not tested:
            status, reason = Status.NOT_TESTED, _reason(untested)
        elif tested < len(facts.cluster):
            where = f"({tested} of {len(facts.cluster)} nodes)"
        outcomes.append(Outcome(subject=subject, status=status, untested=untested, reason=reason, where=where))
    return outcomes


def _reason(untested: Mapping[str, str]) -> str:
    """Why nothing was tested; nodes are named only where their reasons differ."""
    whys = together(untested)
    if len(whys) <= 1:
        return next(iter(whys), "no node answers")
    return "; ".join(f"{why} on {fold(names)}" for why, names in whys.items())


def verdict(facts: Facts, findings: Sequence[Finding], outcomes: Sequence[Outcome]) -> str:
    """One line: who answers, whether a run could start, and what was not tested."""
    total, answer = len(facts.cluster), len(facts.reached())
    who = "the node answers" if answer == total == 1 else f"{answer} of {total} nodes answer"
    stops = _count(findings, Severity.BLOCK)
    warnings = _count(findings, Severity.WARN)
    said = [f"{many(stops, 'finding')} would stop a run"] if stops else []
    said += [many(warnings, "warning")] if warnings else []
    skipped = sum(each.status is Status.NOT_TESTED for each in outcomes)
    left_out = f"; {many(skipped, 'subject')} not tested" if skipped else ""
    return f"{who}; {', '.join(said) or 'all aboard'}{left_out}"


def here_only(facts: Facts) -> str:
    """What to say when nobody named a node; else nothing."""
    if facts.cluster.source != THIS_MACHINE:
        return ""
    return "checked this machine only; to check a cluster, name its nodes: `aboard check gpu01 gpu02`"


def _count(findings: Sequence[Finding], severity: Severity) -> int:
    return sum(finding.severity is severity for finding in findings)
