"""The result of each subject of a check, and the conclusion."""

from collections.abc import Mapping, Sequence
from enum import Enum

from aboard.commands.shared.number_format import format_count
from aboard.commands.shared.status_marks import find_worst
from aboard.core.cluster.cluster import SLURM_JOB, THIS_MACHINE
from aboard.core.cluster.node_sets import fold_names
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Finding, Severity
from aboard.doctor.shared.majority import group_by_value
from aboard.lazy_dataclass import dataclass


class SubjectStatus(Enum):
    """Nothing above info was found, something was, or nothing was tested."""

    PASSED = "passed"
    FINDINGS = "findings"
    NOT_TESTED = "not tested"


@dataclass(frozen=True, kw_only=True)
class SubjectResult:
    """The result of a subject; `untested` has reasons by node, `reason` is set if no node was tested."""

    subject: Subject
    status: SubjectStatus
    untested: Mapping[str, str]
    reason: str = ""
    # On how many nodes it passed, if not on all.
    where: str = ""


def summarize_subjects(
    facts: Facts, subjects: Sequence[Subject], by_subject: Mapping[str, Sequence[Finding]]
) -> list[SubjectResult]:
    """One result per checked subject, in order.

    A finding folded under another subject's still counts for its own. A subject without a tested node has not passed.
    """
    worst = find_worst(by_subject)
    reached = [node.name for node in facts.list_reached()]
    outcomes = []
    for subject in (each for each in subjects if each.name in worst):
        untested = {name: why for name, why in subject.untested(facts).items() if name in reached}
        tested = len(reached) - len(untested)
        status, reason, where = SubjectStatus.PASSED, "", ""
        if any(severity is not Severity.INFO for severity in worst[subject.name].values()):
            status = SubjectStatus.FINDINGS
        elif not tested:
            status, reason = SubjectStatus.NOT_TESTED, _format_reason(untested)
        elif tested < len(facts.cluster):
            where = f"({tested} of {len(facts.cluster)} nodes)"
        outcomes.append(SubjectResult(subject=subject, status=status, untested=untested, reason=reason, where=where))
    return outcomes


def _format_reason(untested: Mapping[str, str]) -> str:
    """Why nothing was tested; names the nodes only if their reasons differ."""
    whys = group_by_value(untested)
    if len(whys) <= 1:
        return next(iter(whys), "no node was reached")
    return "; ".join(f"{why} on {fold_names(names)}" for why, names in whys.items())


def format_conclusion(facts: Facts, findings: Sequence[Finding], outcomes: Sequence[SubjectResult]) -> str:
    """One line: which nodes were reached, whether a run could start, and what was not tested."""
    total, reached = len(facts.cluster), len(facts.list_reached())
    who = "the node was reached" if reached == total == 1 else f"{reached} of {total} nodes reached"
    stops = _count_findings(findings, Severity.BLOCK)
    warnings = _count_findings(findings, Severity.WARN)
    counts = [f"{format_count(stops, 'finding')} would stop a run"] if stops else []
    counts += [format_count(warnings, "warning")] if warnings else []
    skipped = sum(each.status is SubjectStatus.NOT_TESTED for each in outcomes)
    left_out = f"; {format_count(skipped, 'subject')} not tested" if skipped else ""
    return f"{who}; {', '.join(counts) or 'no problems found'}{left_out}"


def format_source_note(facts: Facts) -> str:
    """Where the nodes came from, if the user named none; else empty."""
    source = facts.cluster.source
    if source.startswith(SLURM_JOB):
        return f"checked the nodes of {source}: {fold_names(node.name for node in facts.cluster)}"
    if source != THIS_MACHINE:
        return ""
    return "checked this machine only; to check a cluster, pass its nodes: `aboard check gpu01 gpu02`"


def _count_findings(findings: Sequence[Finding], severity: Severity) -> int:
    return sum(finding.severity is severity for finding in findings)
