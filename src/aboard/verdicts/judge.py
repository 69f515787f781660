"""The rules over a live run's evidence, in one place, and the verdict that they come to."""

from collections.abc import Sequence
from dataclasses import replace

from aboard.core.evidence import Evidence
from aboard.core.finding import Finding, Severity
from aboard.core.verdict import Cause, RuledOut, VerdictRule, Why, first_cause
from aboard.verdicts import hang, init, links, loss, meeting, slow, stuck
from aboard.verdicts.unknown import unknown

# The order is that of the story of a run; which cause comes first is decided by how sure and how early it is.
RULES: tuple[VerdictRule, ...] = (
    *stuck.RULES,
    *init.RULES,
    *meeting.RULES,
    *hang.RULES,
    *links.RULES,
    *slow.RULES,
    *loss.RULES,
)


def judge(evidence: Evidence) -> Why:
    """The earliest cause first, others that are as sure behind it, and what it isn't."""
    said = [each for rule in RULES for each in rule(evidence)]
    causes = first_cause(each for each in said if isinstance(each, Cause))
    ruled_out = tuple(each for each in said if isinstance(each, RuledOut))
    findings = _folded(causes) if causes else list(unknown(evidence, ruled_out))
    return Why(findings=tuple(findings), ruled_out=ruled_out, quiet=evidence.quiet)


def _folded(causes: Sequence[Cause]) -> list[Finding]:
    """What is less sure than the first cause, or only worth knowing, follows from it until it is mended."""
    first, *rest = causes
    told: list[Finding] = []
    under: list[Finding] = []
    for cause in rest:
        apart = cause.sure == first.sure and cause.finding.severity is Severity.BLOCK
        (told if apart else under).append(cause.finding)
    return [replace(first.finding, consequences=(*first.finding.consequences, *under)), *told]
