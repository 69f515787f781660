"""A launch as plain lines, for grep and logs: each line is self-contained and starts with its kind.

run 20261115-0507-brave-otter: train.py, 16 ranks on 16 nodes, master 10.0.0.1:29500
phase torch 14/16 3.2 s
phase torch 16/16 4.0 s
waiting for n07 rank 12-13: torch imported, for 8.1 s
node n12: silent for 4.0 s: ssh: connection timed out
node n12 back after 9.0 s
compiling on 16/16 ranks
compiled after 48 s
step 120 0.35 s/step
dead: n07 rank 12, RuntimeError: CUDA error, 0.1 s ago
stuck run-rank-stopped n07: rank 12 on n07 is stopped (SIGSTOP)
fix kill -CONT 4711    # on n07; lets it go on
slow slow-rank n03: rank 5 on n03 arrived 1.0 s later than the others at 9 of the last 48 collectives
progress again after 12 s
dropped n07 sent more events than a run keeps: 1,204 dropped
stopping: rank 12 on n07 died
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from aboard.commands.launch.view.missing_ranks import group_missing
from aboard.commands.launch.view.run_cost import format_recovery
from aboard.commands.launch.view.training_progress import format_progress_line
from aboard.commands.shared.number_format import format_count, format_pace
from aboard.core.cluster.node_sets import fold_names
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_progress import SILENT_SECONDS, MissingRanks, MissingReason, RunProgress, Stall
from aboard.core.text.durations import format_duration

# The intervals between counts, before a wait is reported, and before a report is repeated.
COUNT_SECONDS = 1.0
WAIT_SECONDS = 5.0
AGAIN_SECONDS = 30.0
# Of a line about a recovery.
WIDE = 400

NEVER = float("-inf")


class PlainLaunchWriter:
    """Writes lines, without line ends, for what changed since the last update; uses the clock of the updates."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._generation: int | None = None
        self._reset_generation()

    def update(self, progress: RunProgress) -> None:
        for line in self._lines(progress):
            self._write(line)

    def _reset_generation(self) -> None:
        """Resets the state for a new generation."""
        self._counted: tuple[Phase, int] = (Phase.WAITING, 0)
        self._counted_at = NEVER
        self._complete = Phase.WAITING
        self._dead: set[int] = set()
        self._waiting: dict[tuple[str, str], float] = {}
        self._waited_at = NEVER
        self._cut: dict[str, tuple[float, float]] = {}
        self._stepped_at = NEVER
        self._training_step: int | None = None
        self._ending = ""
        self._recovered_at = NEVER
        self._finished = ""
        self._stall: Stall | None = None
        self._stalled_at = NEVER
        self._compiling_since: float | None = None
        self._compiling_said = False
        self._noticed: tuple[str, ...] = ()
        self._noticed_at = NEVER

    def _lines(self, progress: RunProgress) -> Iterator[str]:
        if self._generation is None:
            who = f"{format_count(progress.world, 'rank')} on {format_count(len(progress.rows), 'node')}"
            yield f"run {progress.run}: {progress.program}, {who}, master {progress.master.removesuffix(':0')}"
        elif self._generation != progress.generation:
            self._reset_generation()
            if progress.generation > 1:
                why = f", because {progress.restarting}" if progress.restarting else ""
                yield f"attempt {progress.generation}: restarting all ranks{why}"
        self._generation = progress.generation
        yield from self._recovery(progress)
        yield from self._phases(progress)
        yield from self._nodes(progress)
        yield from self._format_deaths(progress)
        if not progress.stopping:
            yield from self._waits(progress)
        yield from self._compilations(progress)
        yield from self._steps(progress)
        yield from self._stalls(progress)
        yield from self._notices(progress)
        if progress.stopping != self._ending:
            self._ending = progress.stopping
            yield f"stopping: {progress.stopping}"
        if progress.finished != self._finished:
            self._finished = progress.finished
            yield f"finished: {progress.finished}"

    def _phases(self, progress: RunProgress) -> Iterator[str]:
        """Each phase that all ranks have reached, at once; before that, counts of the furthest phase at intervals."""
        slowest = min((phase for row in progress.rows for phase, count in row.phases if count), default=Phase.WAITING)
        after = format_duration(progress.now - progress.began)
        for phase in Phase:
            if self._complete < phase <= slowest:
                yield f"phase {phase.name.lower()} {progress.world}/{progress.world} {after}"
        self._complete = max(self._complete, slowest)
        count = (progress.phase, progress.ranks_in_phase)
        due = progress.now - self._counted_at >= COUNT_SECONDS
        if progress.phase > self._complete and count != self._counted and due:
            self._counted, self._counted_at = count, progress.now
            yield f"phase {progress.phase.name.lower()} {progress.ranks_in_phase}/{progress.world} {after}"

    def _nodes(self, progress: RunProgress) -> Iterator[str]:
        """The nodes that fall silent, still are, or are back."""
        cut = {row.node: row.since for row in progress.rows if row.state in {"cut", "gone"}}
        for node in [node for node in self._cut if node not in cut]:
            since, _reported_at = self._cut.pop(node)
            yield f"node {node} back after {format_duration(progress.now - since)}"
        silent = (each for each in progress.missing if each.trouble in {MissingReason.GONE, MissingReason.SILENT})
        due = []
        for each in silent:
            since, reported_at = self._cut.get(each.node, (progress.now - each.seconds, NEVER))
            if each.seconds >= SILENT_SECONDS and progress.now - reported_at >= AGAIN_SECONDS:
                self._cut[each.node] = (since, progress.now)
                due.append(each)
        for wait in group_missing(due):
            yield f"node {wait.who}{wait.reason}"

    def _format_deaths(self, progress: RunProgress) -> Iterator[str]:
        """The ranks that died, unless the run is already stopping."""
        if self._ending:
            return
        dead = [each for each in progress.missing if each.trouble is MissingReason.DEAD]
        news = [replace(each, ranks=tuple(rank for rank in each.ranks if rank not in self._dead)) for each in dead]
        for wait in group_missing((each for each in news if each.ranks), progress.interest):
            self._dead.update(wait.ranks)
            yield f"dead: {wait.who}{wait.reason}"

    def _recovery(self, progress: RunProgress) -> Iterator[str]:
        """A recovery that lasts, at intervals."""
        due = progress.recovery is not None and progress.now - self._recovered_at >= AGAIN_SECONDS
        if due and progress.recovery is not None and progress.recovery.seconds >= WAIT_SECONDS:
            self._recovered_at = progress.now
            yield f"recovery {format_recovery(progress, WIDE)}"

    def _waits(self, progress: RunProgress) -> Iterator[str]:
        """The ranks that are late; all that are due are grouped, so that a thousand are few lines."""
        if progress.now - self._waited_at < WAIT_SECONDS:
            return
        due = [each for each in progress.missing if self._is_late(each, progress.now)]
        for wait in group_missing(due):
            yield f"waiting for {wait.who}{wait.reason}"
        for each in due:
            self._waiting[each.node, each.why] = self._waited_at = progress.now

    def _is_late(self, missing: MissingRanks, now: float) -> bool:
        reported_at = self._waiting.get((missing.node, missing.why), NEVER)
        return (
            missing.trouble is MissingReason.LATE
            and missing.seconds >= WAIT_SECONDS
            and now - reported_at >= AGAIN_SECONDS
        )

    def _stalls(self, progress: RunProgress) -> Iterator[str]:
        """Why the run makes no progress, once for each cause, and when it does again."""
        stall = (
            progress.stall if progress.stall is not None and progress.stall.grave and not progress.stopping else None
        )
        if stall is not None and (
            self._stall is None or (stall.code, stall.nodes) != (self._stall.code, self._stall.nodes)
        ):
            yield f"{stall.word} {stall.code} {fold_names(stall.nodes)}: {stall.seen}"
            yield f"fix {stall.fix}"
            if stall.ends:
                yield f"then {stall.ends}, unless it makes progress"
            self._stalled_at = progress.now if self._stall is None else self._stalled_at
            self._stall = stall
        elif stall is None and self._stall is not None and not progress.stopping and not progress.finished:
            slow, self._stall = self._stall.slow, None
            after = format_duration(progress.now - self._stalled_at)
            yield f"{'full speed' if slow else 'progress'} again after {after}"

    def _notices(self, progress: RunProgress) -> Iterator[str]:
        """What the record lacks, at intervals while it grows."""
        if progress.notices != self._noticed and progress.now - self._noticed_at >= AGAIN_SECONDS:
            self._noticed, self._noticed_at = progress.notices, progress.now
            yield from (f"dropped {notice}" for notice in progress.notices)

    def _compilations(self, progress: RunProgress) -> Iterator[str]:
        """A compilation that lasts, and its end."""
        compiling = sum(row.compiling for row in progress.rows)
        if not compiling:
            since, self._compiling_since = self._compiling_since, None
            if since is not None and self._compiling_said:
                yield f"compiled after {format_duration(progress.now - since)}"
            self._compiling_said = False
            return
        if self._compiling_since is None:
            self._compiling_since = progress.now
        if not self._compiling_said and progress.now - self._compiling_since >= WAIT_SECONDS:
            self._compiling_said = True
            yield f"compiling on {compiling}/{progress.world} ranks"

    def _steps(self, progress: RunProgress) -> Iterator[str]:
        if progress.step is not None and progress.now - self._stepped_at >= AGAIN_SECONDS:
            self._stepped_at = progress.now
            if progress.training is not None:
                if progress.training.step != self._training_step:
                    yield format_progress_line(progress.training)
                self._training_step = progress.training.step
                return
            rate = "" if progress.step_seconds is None else f" {format_pace(progress.step_seconds)}"
            yield f"step {progress.step}{rate}"
