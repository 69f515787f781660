"""The rules over a live run's evidence, and the verdict by them."""

from dataclasses import replace

from aboard.core.evidence.rank_progress import describe_progress, is_advancing, measure_quiet
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import Judgement, VerdictRule
from aboard.doctor.apply_rules import judge_by_rules
from aboard.doctor.death import gpu_failures
from aboard.doctor.hang import collective_hang, dead_connections, stuck_ranks
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


def judge_evidence(evidence: Evidence, *, advancing: bool = False) -> Judgement:
    """The judgement of a run that has not ended; see `judge_by_rules`."""
    return judge_by_rules(evidence, LIVE_RULES, advancing=advancing)


def judge_live_run(evidence: Evidence) -> Judgement:
    """The judgement of an active run: its progress overrules every hang, since ranks always wait for each other."""
    advancing = is_advancing(evidence)
    why = judge_evidence(evidence, advancing=advancing)
    progress, quiet = describe_progress(evidence), measure_quiet(evidence)
    return replace(why, progress=progress, advancing=advancing, quiet=quiet)
