"""Folds findings under the finding that causes them, so that the first line is the one to fix."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from aboard.diagnoses import Diagnosis, Finding

_LeadsTo = Mapping[str, tuple[str, ...]]


def fold_consequences(findings: Iterable[Finding], diagnoses: Iterable[Diagnosis]) -> list[Finding]:
    """The findings in their order; one that another explains moves into that one, which takes the worst severity."""
    leads_to: _LeadsTo = {diagnosis.code: diagnosis.leads_to for diagnosis in diagnoses}
    all_findings = list(findings)
    remaining = list(all_findings)
    for cause in all_findings:
        consequences = [
            other for other in remaining if other is not cause and _is_cause_of(cause, other, all_findings, leads_to)
        ]
        # By identity: an earlier cause may have absorbed this one, or replaced it with a copy that has consequences.
        index = next((index for index, each in enumerate(remaining) if each is cause), None)
        if consequences and index is not None:
            remaining[index] = _add_consequences(cause, consequences)
            remaining = [each for each in remaining if not any(each is other for other in consequences)]
    return remaining


def _is_cause_of(cause: Finding, other: Finding, all_findings: Iterable[Finding], leads_to: _LeadsTo) -> bool:
    """Whether they share a node, or neither has any, and are about the same thing if the cause names one."""
    if other.code not in leads_to.get(cause.code, ()):
        return False
    if not set(cause.nodes) & set(other.nodes) and (cause.nodes or other.nodes):
        return False
    if cause.about and not set(cause.about) & set(other.about):
        return False
    # A bad link is explained by one of its ends. A finding of another subject on several nodes isn't a link: it is
    # explained only if each of them has a cause of this kind.
    if _get_subject(cause) == _get_subject(other):
        return True
    causes = [each for each in all_findings if other.code in leads_to.get(each.code, ())]
    return set(other.nodes) <= {node for each in causes for node in each.nodes}


def _get_subject(finding: Finding) -> str:
    return finding.code.partition("-")[0]


def _add_consequences(cause: Finding, consequences: list[Finding]) -> Finding:
    """A warning whose consequence stops the run becomes as severe, since the consequence is folded away."""
    worst = max(cause.severity, *(each.severity for each in consequences))
    return replace(cause, severity=worst, consequences=(*cause.consequences, *consequences))
