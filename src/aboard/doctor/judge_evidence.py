"""The rules over a live run's evidence, and the verdict from their results."""

from collections.abc import Sequence
from dataclasses import replace

from aboard.core.evidence.rank_progress import describe_progress, is_advancing, measure_quiet
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import Cause, Judgement, RuledOut, RuleResult, VerdictRule, is_hang, order_causes
from aboard.diagnoses import Finding, Severity
from aboard.doctor.death import gpu_failures
from aboard.doctor.hang import collective_hang, dead_connections, stuck_ranks
from aboard.doctor.hang.undetermined import describe_unknown_stall, report_failed_rule
from aboard.doctor.loss import nonfinite_loss
from aboard.doctor.nccl_ras import rules as nccl_ras
from aboard.doctor.slow import slow_run
from aboard.doctor.start import initialization, rendezvous

# In the order of a run's phases; confidence and time decide which cause comes first.
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


def judge_evidence(
    evidence: Evidence, rules: Sequence[VerdictRule] = LIVE_RULES, *, advancing: bool = False
) -> Judgement:
    """The earliest cause first, then others of equal confidence, and what was ruled out.

    Nothing holds up a run that is `advancing`; a cause may slow it down.
    """
    results = [each for rule in rules for each in _apply_rule(rule, evidence)]
    found = (each for each in results if isinstance(each, Cause))
    causes = order_causes(each for each in found if not (advancing and is_hang(each.finding)))
    ruled_out = tuple(each for each in results if isinstance(each, RuledOut))
    unknown = [] if advancing else describe_unknown_stall(evidence, ruled_out)
    findings = _fold_causes(causes) if causes else list(unknown)
    return Judgement(findings=tuple(findings), ruled_out=ruled_out, quiet=evidence.quiet)


def judge_live_run(evidence: Evidence) -> Judgement:
    """The judgement of an active run: its progress overrules every hang, since ranks always wait for each other."""
    advancing = is_advancing(evidence)
    why = judge_evidence(evidence, advancing=advancing)
    progress, quiet = describe_progress(evidence), measure_quiet(evidence)
    return replace(why, progress=progress, advancing=advancing, quiet=quiet)


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
        separate_cause = cause.explains or (cause.sure == first.sure and cause.finding.severity is Severity.BLOCK)
        (separate if separate_cause else under).append(cause.finding)
    return [replace(first.finding, consequences=(*first.finding.consequences, *under)), *separate]
