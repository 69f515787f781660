"""Whether a run's ranks advance, and how far they are: steps, or else collectives."""

from aboard.core.evidence.run_evidence import Evidence
from aboard.core.run.rank_phases import Phase
from aboard.core.run.stall_detector import compute_limit
from aboard.core.text.durations import format_latency
from aboard.core.text.input_text import format_count


def measure_quiet(evidence: Evidence) -> float | None:
    """Seconds since a rank last made a step, reached a phase or entered a collective; None where unknown."""
    if evidence.quiet is None:
        return None
    entered = [
        entry.at - evidence.offsets.get(rank, 0.0)
        for rank, groups in evidence.records.items()
        for group in groups
        for entry in group.entries
        if entry.at
    ]
    # Of a record whose clock is ahead, the time is not used: it would look like endless progress.
    latest = max((at for at in entered if at <= evidence.now), default=None)
    return evidence.quiet if latest is None else min(evidence.quiet, evidence.now - latest)


def is_advancing(evidence: Evidence) -> bool:
    """Whether the ranks, once together, advance as fast as the run usually does."""
    phases = evidence.run.generation.phases
    together = phases[Phase.STEPS] > 0 or any(evidence.records.values())
    quiet = measure_quiet(evidence)
    usual = evidence.usual if phases[Phase.STEPS] else None
    return together and quiet is not None and quiet < compute_limit(usual)


def describe_progress(evidence: Evidence) -> str:
    """`step 40 of 345, 310 ms per step`; the collectives of a run without steps, or else its phase."""
    run = evidence.run
    steps = [int(sample.values["step"]) for sample in run.samples.values() if "step" in sample.values]
    step = run.step if run.step is not None else max(steps, default=0)
    if step:
        total = int(run.metrics.get("steps", 0))
        pace = evidence.pace or evidence.usual
        pace_text = f", {format_latency(pace)} per step" if pace else ""
        return f"step {step}{f' of {total}' if total >= step else ''}{pace_text}"
    done = max((group.completed for groups in evidence.records.values() for group in groups), default=0)
    if done > 0:
        return f"{format_count(done, 'collective')} done"
    furthest = max((view.phase for view in evidence.views), default=Phase.WAITING)
    there = sum(view.phase is furthest for view in evidence.views)
    return f"{furthest.label} ({there} of {format_count(len(evidence.views), 'rank')})"
