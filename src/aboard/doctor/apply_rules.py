"""Applies rules to a run's evidence, and orders the causes that they find."""

from collections.abc import Sequence
from dataclasses import replace

from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import Judgement, RuledOut, RuleResult, VerdictRule, is_hang, order_causes
from aboard.diagnoses import Cause, Finding, Severity
from aboard.doctor.hang.undetermined import describe_unknown_stall, report_failed_rule


def judge_by_rules(evidence: Evidence, rules: Sequence[VerdictRule], *, advancing: bool = False) -> Judgement:
    """The earliest cause first, then others of equal confidence, and what was ruled out.

    Nothing holds up a run that is `advancing`; a cause may slow it down.
    """
    results = [each for rule in rules for each in _apply_rule(rule, evidence)]
    found = (each for each in results if isinstance(each, Cause))
    causes = order_causes(each for each in found if not (advancing and is_hang(each)))
    ruled_out = tuple(each for each in results if isinstance(each, RuledOut))
    unknown = [] if advancing else describe_unknown_stall(evidence, ruled_out)
    findings = _fold_causes(causes) if causes else list(unknown)
    return Judgement(findings=tuple(findings), ruled_out=ruled_out, quiet=evidence.quiet)


def _apply_rule(rule: VerdictRule, evidence: Evidence) -> list[RuleResult]:
    try:
        return list(rule(evidence))
    except Exception as error:  # noqa: BLE001 - the other rules still count, and the failure is reported
        return [report_failed_rule(getattr(rule, "__name__", str(rule)), error)]


def _fold_causes(causes: Sequence[Cause]) -> list[Finding]:
    """Less certain or informational causes are listed as consequences of the first one.

    A cause that explains something else is a finding of its own.
    """
    first, *rest = causes
    separate: list[Finding] = []
    under: list[Finding] = []
    for cause in rest:
        is_separate = cause.explains or (cause.sure == first.sure and cause.severity is Severity.BLOCK)
        (separate if is_separate else under).append(cause.as_finding())
    return [replace(first.as_finding(), consequences=(*first.consequences, *under)), *separate]
