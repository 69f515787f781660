"""What a check comes to: which subjects are well, and the last line."""

from collections.abc import Iterator, Mapping, Sequence

from aboard.core.facts import Facts
from aboard.core.finding import Finding, Severity
from aboard.core.rule import Subject
from aboard.ui.marks import worst_of


def healthy(
    facts: Facts, subjects: Sequence[Subject], by_subject: Mapping[str, Sequence[Finding]]
) -> Iterator[tuple[Subject, str]]:
    """The subjects that were asked and of which nothing above info was found, each with of how many nodes that holds.

    What is folded under another subject's finding spoils its own all the same, and nobody answering is no good news.
    """
    worst = worst_of(by_subject)
    total, answer = len(facts.cluster), len(facts.reached())
    for subject in subjects:
        asked = answer > 0 and subject.name in worst
        if asked and all(severity is Severity.INFO for severity in worst[subject.name].values()):
            yield subject, "" if answer == total else f"({answer} of {total} nodes)"


def verdict(facts: Facts, findings: Sequence[Finding]) -> str:
    """One line: who answers, and whether a run could start."""
    total, answer = len(facts.cluster), len(facts.reached())
    who = "the node answers" if answer == total == 1 else f"{answer} of {total} nodes answer"
    stops = _count(findings, Severity.BLOCK)
    warnings = _count(findings, Severity.WARN)
    said = [f"{stops} finding{'s' * (stops != 1)} would stop a run"] if stops else []
    said += [f"{warnings} warning{'s' * (warnings != 1)}"] if warnings else []
    return f"{who}; {', '.join(said) or 'all aboard'}"


def _count(findings: Sequence[Finding], severity: Severity) -> int:
    return sum(finding.severity is severity for finding in findings)
