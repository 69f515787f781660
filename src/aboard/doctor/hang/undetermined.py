"""Findings for a stall that no rule explains, and for failures of the inspection itself."""

from collections.abc import Iterator, Sequence
from traceback import extract_tb

from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import RuledOut
from aboard.core.run.rank_phases import Phase
from aboard.core.text.rank_sets import name_ranks
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import escape_text
from aboard.doctor.hang import diagnoses as hang

# A run that doesn't report steps may work silently for this long.
_QUIET_SECONDS = 120.0


def describe_unknown_stall(evidence: Evidence, ruled_out: Sequence[RuledOut]) -> Iterator[Finding]:
    """Reports where the ranks are, by line, and which nodes did not reply."""
    quiet = evidence.quiet
    steps = evidence.run.generation.phases[Phase.STEPS]
    if quiet is None or quiet < (_QUIET_SECONDS if not steps else max(30.0, 10 * (evidence.usual or 3.0))):
        return
    if not any(view.alive and view.phase >= Phase.TORCH for view in evidence.views):
        return
    places: dict[str, list[int]] = {}
    for view in evidence.views:
        if view.alive:
            where = f"{view.at or 'running'} at {view.site}" if view.site else view.phase.label
            places.setdefault(where, []).append(view.rank)
    known = "; ".join(f"{name_ranks(ranks)}: {where}" for where, ranks in list(places.items())[:4])
    unheard = f"; no reply from {', '.join(evidence.unheard)}" if evidence.unheard else ""
    busy = sum(view.cpu for view in evidence.views)
    rank = min(places.values(), key=len)[0] if places else 0
    yield hang.UNKNOWN.finding(
        severity=None if busy < 0.5 * len(evidence.views) else Severity.INFO,
        nodes=tuple(dict.fromkeys(view.node for view in evidence.views if view.alive)),
        seen=f"no progress for {quiet:.0f} s; {known}{unheard}",
        why=f"None of the {len(ruled_out)} causes that were checked explains the stall.",
        fix=hang.UNKNOWN.fix(run=evidence.plan.run, rank=rank),
    )


def report_internal_error(error: Exception, *, run: str) -> Finding:
    """The inspection failed through a bug of ours; reported once, and the run is inspected again."""
    frames = extract_tb(error.__traceback__)[-1:]
    where = f" in {frames[0].name}, line {frames[0].lineno}" if frames else ""
    return hang.WHY_FAILED.finding(
        nodes=(),
        seen=f"inspecting this run failed: {type(error).__name__}: {escape_text(str(error), 200)}{where}",
        fix=hang.WHY_FAILED.fix(run=run),
    )


def report_failed_rule(rule: str, error: Exception) -> RuledOut:
    """A rule that fails through a bug of ours doesn't stop the other rules."""
    message = f"{type(error).__name__}: {escape_text(str(error), 200)}"
    return RuledOut(
        what=f"a cause that the rule {rule!r} finds", why=f"the rule failed because of a bug in Aboard: {message}"
    )
