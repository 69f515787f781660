"""The rules over a live run's evidence, in one place, and the verdict that rules come to."""

from collections.abc import Sequence
from dataclasses import replace

from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import Cause, Judgement, RuledOut, RuleResult, VerdictRule, order_causes
from aboard.diagnoses import Finding, Severity
from aboard.verdicts import gpu_failures
from aboard.verdicts.live import (
    collective_hang,
    dead_connections,
    initialization,
    nccl_ras,
    nonfinite_loss,
    rendezvous,
    slow_run,
    stuck_ranks,
)
from aboard.verdicts.live.undetermined import describe_unknown_stall, report_failed_rule

# The order is that of the story of a run; which cause comes first is decided by how sure and how early it is.
LIVE_RULES: tuple[VerdictRule, ...] = (
    *stuck_ranks.RULES,
    *initialization.RULES,
    *rendezvous.RULES,
    *collective_hang.RULES,
    *gpu_failures.RULES,
    *nccl_ras.RULES,
    *dead_connections.RULES,
    *slow_run.RULES,
    *nonfinite_loss.RULES,
)


def judge_evidence(evidence: Evidence, rules: Sequence[VerdictRule] = LIVE_RULES) -> Judgement:
    """The earliest cause first, others that are as sure behind it, and what it isn't."""
    results = [each for rule in rules for each in _apply_rule(rule, evidence)]
    causes = order_causes(each for each in results if isinstance(each, Cause))
    ruled_out = tuple(each for each in results if isinstance(each, RuledOut))
    findings = _fold_causes(causes) if causes else list(describe_unknown_stall(evidence, ruled_out))
    return Judgement(findings=tuple(findings), ruled_out=ruled_out, quiet=evidence.quiet)


def _apply_rule(rule: VerdictRule, evidence: Evidence) -> list[RuleResult]:
    try:
        return list(rule(evidence))
    except Exception as error:  # noqa: BLE001 - whatever it is, the other rules are heard, and it is told
        return [report_failed_rule(getattr(rule, "__name__", str(rule)), error)]


def _fold_causes(causes: Sequence[Cause]) -> list[Finding]:
    """What is less sure than the first cause, or only worth knowing, follows from it until it is mended.

    What explains something else stands beside it.
    """
    first, *rest = causes
    separate: list[Finding] = []
    under: list[Finding] = []
    for cause in rest:
        apart = cause.explains or (cause.sure == first.sure and cause.finding.severity is Severity.BLOCK)
        (separate if apart else under).append(cause.finding)
    return [replace(first.finding, consequences=(*first.finding.consequences, *under)), *separate]
