"""The progress of a run: the phase of each rank, and the ranks that the others wait for. Rendered elsewhere."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from enum import IntEnum
from textwrap import indent
from typing import Annotated

from aboard.core.decoding import Lines, MaxLength
from aboard.core.evidence.node_snapshot import ACTIVITIES
from aboard.core.plan.plan import Plan
from aboard.core.run.rank_phases import Phase
from aboard.core.run.recovery.recovery_policy import Action, StallAction
from aboard.core.run.run_state import MOST_RECOVERIES, WHY_CHARS, GenerationEnd, RankProcess, Run, describe_spare
from aboard.core.run.training_metrics import TrainingStatus
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import Untrusted, escape_text
from aboard.lazy_dataclass import dataclass

# A shorter silence is only a late heartbeat.
SILENT_SECONDS = 2.0
_NODES, _RANKS = 16_384, 32_768
_COMPILING, _HELD = ACTIVITIES.index("compiling"), ACTIVITIES.index("rendezvous")


@dataclass(frozen=True, kw_only=True)
class NodeRow:
    """One node: its ranks by phase, its connection, its resource use. `step` is its slowest rank's."""

    node: str
    ranks: Annotated[tuple[int, ...], MaxLength(_RANKS)]
    phases: tuple[tuple[Phase, int], ...]
    state: str
    since: float
    note: str = ""
    step: int | None = None
    step_seconds: float | None = None
    load: float | None = None
    memory: float | None = None
    rss: float | None = None
    cpu: float | None = None
    # Ranks in which torch compiles now.
    compiling: int = 0


class MissingReason(IntEnum):
    """Why ranks are missing, worst first: a rank died, a node is unreachable, a rank is only behind."""

    DEAD = 0
    GONE = 1
    SILENT = 2
    LATE = 3


@dataclass(frozen=True, kw_only=True)
class MissingRanks:
    """Ranks that the others wait for: their node, the reason, and since when (seconds)."""

    trouble: MissingReason
    node: str
    ranks: Annotated[tuple[int, ...], MaxLength(_RANKS)]
    why: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Stall:
    """Why a run makes no progress, in short: the verdict's code, the observation, the first command of the fix."""

    code: str
    grave: bool
    nodes: Annotated[tuple[str, ...], MaxLength(_NODES)]
    seen: Lines
    fix: Lines
    # What is done about it in how many seconds, unless the run progresses: "restarted in 42 s".
    ends: str = ""

    @property
    def slow(self) -> bool:
        return self.code.startswith("slow-")

    @property
    def word(self) -> str:
        return "slow" if self.slow else "stuck"

    @property
    def key(self) -> tuple[str, ...]:
        """Distinguishes stalls; leaves out how slow a rank is, which changes between snapshots."""
        return (self.code,) if self.slow else (self.code, *self.nodes)


@dataclass(frozen=True, kw_only=True)
class RecoveryProgress:
    """A recovery that is going on: for which attempt, of how many, after which failure, and for how many seconds."""

    attempt: int
    most: int
    code: str
    seen: str
    doing: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """A whole run at one moment. `phase` is the furthest of any rank, which `ranks_in_phase` ranks have reached."""

    run: str
    program: Annotated[str, MaxLength(4096)]
    master: str
    began: float
    now: float
    world: int
    generation: int
    phase: Phase
    ranks_in_phase: int
    rows: Annotated[tuple[NodeRow, ...], MaxLength(_NODES)]
    missing: Annotated[tuple[MissingRanks, ...], MaxLength(_NODES)] = ()
    step: int | None = None
    step_seconds: float | None = None
    restarting: str = ""
    # How often it was restarted after a failure, since when it runs, and what is done about the last failure.
    restarts: int = 0
    # How earlier attempts ended, the newest last.
    attempts: Annotated[tuple[GenerationEnd, ...], MaxLength(MOST_RECOVERIES)] = ()
    run_began: float = 0.0
    recovering: str = ""
    recovery: RecoveryProgress | None = None
    # The seconds of each class of the run's ledger, and the share of the time that its steps needed.
    spent: Mapping[str, float] = field(default_factory=dict)
    goodput: float | None = None
    stopping: str = ""
    finished: str = ""
    interest: int | None = None
    tail: tuple[Annotated[Untrusted, MaxLength(4096)], ...] = ()
    training: TrainingStatus | None = None
    stall: Stall | None = None
    notices: Annotated[tuple[str, ...], MaxLength(_NODES)] = ()
    # Parts of checkpoints that are on one disk only although they should be copied.
    uncopied: Annotated[tuple[str, ...], MaxLength(_NODES)] = ()
    # Spares that can't take over now.
    spares: Annotated[tuple[str, ...], MaxLength(_NODES)] = ()
    # Why messages or metrics of the run don't arrive.
    unsent: tuple[str, ...] = ()


def describe_attempt(attempt: GenerationEnd) -> str:
    """In one line, and what to type about it if another followed; the verdict on the last one is shown in full."""
    fix = "" if attempt.action == Action.STOP else attempt.fix
    return f"{attempt}\n{indent(fix, '    ')}".rstrip()


def build_run_progress(plan: Plan, run: Run, now: float, *, tail: tuple[Untrusted, ...] = ()) -> RunProgress:
    """O(ranks), so call it per frame, not per event. `tail` is the last output of the rank of interest."""
    rows = [_build_node_row(plan, run, index) for index in range(len(plan.parts))]
    phases = Counter[Phase]()
    for row in rows:
        phases.update(dict(row.phases))
    furthest = max((phase for phase, count in phases.items() if count and phase is not Phase.DONE), default=Phase.DONE)
    ranks_in_phase = sum(count for phase, count in phases.items() if phase >= furthest)
    slowest = min((row for row in rows if row.step is not None), key=lambda row: row.step or 0, default=None)
    return RunProgress(
        run=plan.run,
        program=plan.program.target,
        master=f"{plan.master.address}:{plan.master.port}",
        began=run.generation.at,
        now=now,
        world=plan.world,
        generation=run.generation.number,
        phase=furthest,
        ranks_in_phase=ranks_in_phase,
        rows=tuple(rows),
        missing=tuple(_find_missing(plan, run, furthest, now)),
        step=run.step,
        step_seconds=slowest.step_seconds if slowest else None,
        restarting=run.restarting,
        restarts=sum(each.action != Action.STOP for each in run.recoveries),
        attempts=tuple(run.recoveries),
        run_began=run.began,
        recovering=run.recovering,
        recovery=_build_recovery_progress(run, now),
        spent=run.ledger.measure(now),
        goodput=run.ledger.compute_goodput(run.step, now),
        stopping=run.stopping,
        finished=run.finished.why.visible(WHY_CHARS) if run.finished else "",
        interest=find_rank_of_interest(run),
        tail=tail,
        training=TrainingStatus(metrics=dict(run.metrics), curve=tuple(run.curve.points), at=run.step)
        if run.metrics
        else None,
        notices=tuple(run.notices.values()),
        uncopied=tuple(run.describe_uncopied()),
        spares=tuple(describe_spare(name, why) for name, why in sorted(run.unfit_spares.items())),
        unsent=tuple(filter(None, run.unsent.values())),
    )


def _build_recovery_progress(run: Run, now: float) -> RecoveryProgress | None:
    """From the decision on the last failure until the next step; None otherwise."""
    if not run.recoveries or run.finished or run.stopping or not run.ledger.is_recovering:
        return None
    last = run.recoveries[-1]
    return RecoveryProgress(
        attempt=last.number + 1,
        most=last.most,
        code=last.code,
        seen=last.seen,
        doing=last.doing or last.why,
        seconds=max(0.0, now - run.ledger.failed_at),
    )


def _build_node_row(plan: Plan, run: Run, index: int) -> NodeRow:
    part = plan.parts[index]
    name = part.node.name
    generation = run.generation
    phases: dict[Phase, int] = {}
    slowest: tuple[int, Mapping[str, float]] | None = None
    used: dict[str, float] = {}
    compiling = 0
    # Plain loops: with thousands of ranks they dominate the cost of a frame.
    for start in part.starts:
        key = (name, start.child)
        child = generation.children.get(key)
        phase = child.phase if child is not None else Phase.WAITING
        phases[phase] = phases.get(phase, 0) + 1
        sample = run.samples.get(key)
        if sample is not None:
            values = sample.values
            compiling += values.get("doing") == _COMPILING
            for what in ("rss", "cpu"):
                if what in values:
                    used[what] = used.get(what, 0) + values[what]
            step = run.steps.get(key)
            if step is not None and (slowest is None or step < slowest[0]):
                slowest = (step, values)
    connection = generation.connections.get(name)
    node = run.samples.get((name, ""))
    return NodeRow(
        node=name,
        ranks=tuple(start.rank or 0 for start in part.starts),
        phases=tuple(sorted(phases.items())),
        state=connection.state if connection else "waiting",
        since=connection.at if connection else generation.at,
        note=connection.why.visible(WHY_CHARS) if connection else "",
        step=slowest[0] if slowest else None,
        step_seconds=slowest[1].get("step_seconds") if slowest else None,
        load=node.values.get("load") if node else None,
        memory=node.values.get("memory") if node else None,
        rss=used.get("rss"),
        cpu=used.get("cpu"),
        compiling=compiling,
    )


def _find_missing(plan: Plan, run: Run, furthest: Phase, now: float) -> list[MissingRanks]:
    """The ranks behind the furthest ones; only before the first step, since steps always differ a little."""
    found = []
    connections, children = run.generation.connections, run.generation.children
    here = min(furthest, Phase.STEPS)
    for part in plan.parts:
        name = part.node.name
        connection = connections.get(name)
        late: dict[tuple[MissingReason, str], list[tuple[int, float]]] = {}
        silent = connection is not None and connection.state in ("cut", "gone")
        for start in part.starts:
            child = children.get((name, start.child))
            if child is not None and child.state == "exited" and child.code == 0:
                continue
            behind = child is None or child.phase < max(here, Phase.STARTED) or child.dead
            if behind and not silent:
                trouble, why, since = _explain_missing(child, run)
                late.setdefault((trouble, why), []).append((start.rank or 0, since))
        if silent and connection is not None and now - connection.at >= SILENT_SECONDS:
            trouble = MissingReason.GONE if connection.state == "gone" else MissingReason.SILENT
            ranks = tuple(start.rank or 0 for start in part.starts)
            why = connection.why.visible(WHY_CHARS)
            found.append(MissingRanks(trouble=trouble, node=name, ranks=ranks, why=why, seconds=now - connection.at))
        for (trouble, why), ranks_since in late.items():
            oldest = min(since for _, since in ranks_since)
            ranks = tuple(rank for rank, _ in ranks_since)
            seconds = max(0.0, now - oldest)
            found.append(MissingRanks(trouble=trouble, node=name, ranks=ranks, why=why, seconds=seconds))
    return found


def _explain_missing(process: RankProcess | None, run: Run) -> tuple[MissingReason, str, float]:
    if process is None:
        return MissingReason.LATE, "not started yet", run.generation.at
    if process.raised is not None:
        first_line = f"{process.raised.type.raw()}: {process.raised.message.raw().strip().partition(chr(10))[0]}"
        return MissingReason.DEAD, escape_text(first_line, WHY_CHARS), process.died_at
    if process.dead:
        return MissingReason.DEAD, process.why.visible(WHY_CHARS) or f"exited with code {process.code}", process.at
    if process.state == "unpacking":
        return MissingReason.LATE, "unpacking the image", process.at
    sample = run.samples.get((process.node, process.name))
    held = sample is not None and sample.values.get("doing") == _HELD
    return MissingReason.LATE, "waiting for rank 0 to listen" if held else process.phase.label, process.since


def build_stall(
    finding: Finding | None, ends: tuple[StallAction, float] | None = None, now: float = 0.0
) -> Stall | None:
    """`ends` is what is done about it, and when."""
    if finding is None:
        return None
    word = "" if ends is None else "restarted" if ends[0] is StallAction.RESTART else "stopped"
    left = "" if ends is None else f"{word} in {max(0.0, ends[1] - now):.0f} s"
    fix = finding.fix.partition("\n")[0]
    grave = finding.severity > Severity.INFO
    return Stall(code=finding.code, grave=grave, nodes=finding.nodes, seen=finding.seen, fix=fix, ends=left)


def find_rank_of_interest(run: Run) -> int | None:
    """The rank to show: the first that died, else rank 0."""
    first = run.generation.first_death
    name = first.name if first is not None else "0"
    return int(name) if name.isdigit() else None
