"""A trial runs one command on each node alone, on pairs, and on all: the smallest failing group names the nodes."""

from collections.abc import Sequence

from aboard.core.cluster.node_sets import fold_names
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_progress import RunProgress
from aboard.core.run.run_state import Run
from aboard.diagnoses import Finding
from aboard.diagnoses.runs import death
from aboard.lazy_dataclass import dataclass

# Long enough for a slow import from a network file system, short enough to wait for.
STUCK_SECONDS = 45.0
# A program without torch has succeeded if all of its processes still run after this long.
ALIVE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """The result of one group: whether it reached its first collective or step (or its end)."""

    group: tuple[str, ...]
    passed: bool
    seconds: float
    outcome: str
    findings: tuple[Finding, ...] = ()


def build_stages(names: Sequence[str]) -> list[list[tuple[str, ...]]]:
    """The groups of each stage, which run at the same time: single nodes, then neighbouring pairs, then all."""
    alone: list[tuple[str, ...]] = [(name,) for name in names]
    if len(names) == 1:
        return [alone]
    pairs = [tuple(names[at : at + 2]) for at in range(0, len(names) - 1, 2)]
    # With an odd number, the last node is paired with its neighbour afterwards.
    last: list[tuple[str, ...]] = [(names[-2], names[-1])] if len(names) % 2 else []
    everybody = [tuple(names)] if len(names) > 2 else []  # noqa: PLR2004 - else the pair is all there are
    return [stage for stage in (alone, pairs, last, everybody) if stage]


def has_succeeded(run: Run, world: int, now: float) -> bool | None:
    """Whether the trial succeeded; None while undecided."""
    generation = run.generation
    far = sum(count for phase, count in generation.phases.items() if phase >= Phase.COLLECTIVE)
    if far == world:
        return True
    started = len(generation.children) == world and not generation.phases[Phase.WAITING]
    plain = started and not any(count for phase, count in generation.phases.items() if phase >= Phase.TORCH and count)
    if plain and now - generation.moved > ALIVE_SECONDS and generation.running == world:
        return True
    return False if now - generation.moved > STUCK_SECONDS else None


def build_stuck_finding(progress: RunProgress) -> Finding:
    """The finding on a group that got stuck without dying: which ranks are missing, and where the others are."""
    late = progress.missing
    who = "; ".join(f"{each.node}: {each.why} for {each.seconds:.0f} s" for each in late) or "no rank is behind"
    return death.STUCK.finding(
        nodes=tuple(each.node for each in late) or tuple(row.node for row in progress.rows),
        seen=f"{progress.ranks_in_phase}/{progress.world} ranks are at '{progress.phase.label}', without progress for"
        f" {STUCK_SECONDS:.0f} s: {who}",
        fix=death.STUCK.fix(nodes=fold_names(row.node for row in progress.rows)),
    )


def build_trial_finding(results: Sequence[TrialResult]) -> Finding | None:
    """Names the nodes of the smallest failing groups; a node that passed alone is named only with its pair."""
    failed = [each for each in results if not each.passed]
    if not failed:
        return None
    size = min(len(each.group) for each in failed)
    smallest = [each for each in failed if len(each.group) == size]
    nodes = tuple(dict.fromkeys(name for each in smallest for name in each.group))
    how = {1: "by itself", 2: "as a pair, although each can alone"}.get(size, "together, although each pair can")
    first = smallest[0].findings[0] if smallest[0].findings else None
    return death.TRIAL.finding(
        nodes=nodes,
        seen=f"{', '.join('+'.join(each.group) for each in smallest)} can't run the command {how}:"
        f" {smallest[0].outcome}",
        fix=first.fix if first else death.TRIAL.fix(),
        consequences=tuple(finding for each in smallest for finding in each.findings),
    )
