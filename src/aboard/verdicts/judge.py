"""The rules over a live run's evidence, in one place, and the verdict that rules come to."""

from collections.abc import Sequence
from dataclasses import replace

from aboard.core.evidence import Evidence
from aboard.core.verdict import Cause, RuledOut, Said, VerdictRule, Why, first_cause
from aboard.diagnoses import Finding, Severity
from aboard.verdicts import gpu, hang, init, links, loss, meeting, ras, slow, stuck
from aboard.verdicts.unknown import passed_over, unknown

# The order is that of the story of a run; which cause comes first is decided by how sure and how early it is.
RULES: tuple[VerdictRule, ...] = (
    *stuck.RULES,
    *init.RULES,
    *meeting.RULES,
    *hang.RULES,
    *gpu.RULES,
    *ras.RULES,
    *links.RULES,
    *slow.RULES,
    *loss.RULES,
)


def judge(evidence: Evidence, rules: Sequence[VerdictRule] = RULES) -> Why:
    """The earliest cause first, others that are as sure behind it, and what it isn't."""
    said = [each for rule in rules for each in _heard(rule, evidence)]
    causes = first_cause(each for each in said if isinstance(each, Cause))
    ruled_out = tuple(each for each in said if isinstance(each, RuledOut))
    findings = _folded(causes) if causes else list(unknown(evidence, ruled_out))
    return Why(findings=tuple(findings), ruled_out=ruled_out, quiet=evidence.quiet)


def _heard(rule: VerdictRule, evidence: Evidence) -> list[Said]:
    try:
        return list(rule(evidence))
    except Exception as error:  # noqa: BLE001 - whatever it is, the other rules are heard, and it is told
        return [passed_over(getattr(rule, "__name__", str(rule)), error)]


def _folded(causes: Sequence[Cause]) -> list[Finding]:
    """What is less sure than the first cause, or only worth knowing, follows from it until it is mended.

    What explains something else stands beside it.
    """
    first, *rest = causes
    told: list[Finding] = []
    under: list[Finding] = []
    for cause in rest:
        apart = cause.explains or (cause.sure == first.sure and cause.finding.severity is Severity.BLOCK)
        (told if apart else under).append(cause.finding)
    return [replace(first.finding, consequences=(*first.finding.consequences, *under)), *told]
