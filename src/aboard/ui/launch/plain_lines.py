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
progress again after 12 s
dropped n07 sent more events than a run keeps: 1,204 dropped
stopping: rank 12 on n07 died
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from aboard.core.cluster.node_sets import fold_names
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_progress import SILENT_SECONDS, MissingRanks, MissingReason, RunProgress, Stall
from aboard.core.text.durations import format_duration
from aboard.ui.launch.missing_ranks import group_missing
from aboard.ui.number_format import format_count, format_pace
from aboard.ui.train.training_progress import format_progress_line

# The intervals between counts, before a wait is reported, and before a report is repeated.
COUNT_SECONDS = 1.0
WAIT_SECONDS = 5.0
AGAIN_SECONDS = 30.0

NEVER = float("-inf")


class PlainLaunchWriter:
    """Writes lines, without line ends, for what changed since the last update; uses the clock of the updates."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._generation: int | None = None
        self._forget()

    def update(self, roster: RunProgress) -> None:
        for line in self._lines(roster):
            self._write(line)

    def _forget(self) -> None:
        """Resets the state for a new generation."""
        self._counted: tuple[Phase, int] = (Phase.WAITING, 0)
        self._counted_at = NEVER
        self._complete = Phase.WAITING
        self._dead: set[int] = set()
        self._waiting: dict[tuple[str, str], float] = {}
        self._waited_at = NEVER
        self._cut: dict[str, tuple[float, float]] = {}
        self._stepped_at = NEVER
        self._way_step: int | None = None
        self._ending = ""
        self._finished = ""
        self._stall: Stall | None = None
        self._stalled_at = NEVER
        self._compiling_since: float | None = None
        self._compiling_said = False
        self._noticed: tuple[str, ...] = ()
        self._noticed_at = NEVER

    def _lines(self, roster: RunProgress) -> Iterator[str]:
        if self._generation is None:
            who = f"{format_count(roster.world, 'rank')} on {format_count(len(roster.rows), 'node')}"
            yield f"run {roster.run}: {roster.program}, {who}, master {roster.master.removesuffix(':0')}"
        elif self._generation != roster.generation:
            self._forget()
            if roster.generation > 1:
                why = f", because {roster.restarting}" if roster.restarting else ""
                yield f"attempt {roster.generation}: restarting all ranks{why}"
        self._generation = roster.generation
        yield from self._phases(roster)
        yield from self._nodes(roster)
        yield from self._format_deaths(roster)
        if not roster.stopping:
            yield from self._waits(roster)
        yield from self._compilations(roster)
        yield from self._steps(roster)
        yield from self._stalls(roster)
        yield from self._notices(roster)
        if roster.stopping != self._ending:
            self._ending = roster.stopping
            yield f"stopping: {roster.stopping}"
        if roster.finished != self._finished:
            self._finished = roster.finished
            yield f"finished: {roster.finished}"

    def _phases(self, roster: RunProgress) -> Iterator[str]:
        """Each phase that all ranks have reached, at once; before that, counts of the furthest phase at intervals."""
        slowest = min((phase for row in roster.rows for phase, count in row.phases if count), default=Phase.WAITING)
        after = format_duration(roster.now - roster.began)
        for phase in Phase:
            if self._complete < phase <= slowest:
                yield f"phase {phase.name.lower()} {roster.world}/{roster.world} {after}"
        self._complete = max(self._complete, slowest)
        count = (roster.phase, roster.there)
        due = roster.now - self._counted_at >= COUNT_SECONDS
        if roster.phase > self._complete and count != self._counted and due:
            self._counted, self._counted_at = count, roster.now
            yield f"phase {roster.phase.name.lower()} {roster.there}/{roster.world} {after}"

    def _nodes(self, roster: RunProgress) -> Iterator[str]:
        """The nodes that fall silent, still are, or are back."""
        cut = {row.node: row.since for row in roster.rows if row.state in {"cut", "gone"}}
        for node in [node for node in self._cut if node not in cut]:
            since, _reported_at = self._cut.pop(node)
            yield f"node {node} back after {format_duration(roster.now - since)}"
        silent = (each for each in roster.missing if each.trouble in {MissingReason.GONE, MissingReason.SILENT})
        due = []
        for each in silent:
            since, reported_at = self._cut.get(each.node, (roster.now - each.seconds, NEVER))
            if each.seconds >= SILENT_SECONDS and roster.now - reported_at >= AGAIN_SECONDS:
                self._cut[each.node] = (since, roster.now)
                due.append(each)
        for wait in group_missing(due):
            yield f"node {wait.who}{wait.reason}"

    def _format_deaths(self, roster: RunProgress) -> Iterator[str]:
        """The ranks that died, unless the run is already stopping."""
        if self._ending:
            return
        dead = [each for each in roster.missing if each.trouble is MissingReason.DEAD]
        news = [replace(each, ranks=tuple(rank for rank in each.ranks if rank not in self._dead)) for each in dead]
        for wait in group_missing((each for each in news if each.ranks), roster.interest):
            self._dead.update(wait.ranks)
            yield f"dead: {wait.who}{wait.reason}"

    def _waits(self, roster: RunProgress) -> Iterator[str]:
        """The ranks that are late; all that are due are grouped, so that a thousand are few lines."""
        if roster.now - self._waited_at < WAIT_SECONDS:
            return
        due = [each for each in roster.missing if self._is_late(each, roster.now)]
        for wait in group_missing(due):
            yield f"waiting for {wait.who}{wait.reason}"
        for each in due:
            self._waiting[each.node, each.why] = self._waited_at = roster.now

    def _is_late(self, missing: MissingRanks, now: float) -> bool:
        reported_at = self._waiting.get((missing.node, missing.why), NEVER)
        return (
            missing.trouble is MissingReason.LATE
            and missing.seconds >= WAIT_SECONDS
            and now - reported_at >= AGAIN_SECONDS
        )

    def _stalls(self, roster: RunProgress) -> Iterator[str]:
        """Why the run makes no progress, once for each cause, and when it does again."""
        stall = roster.stall if roster.stall is not None and roster.stall.grave and not roster.stopping else None
        if stall is not None and (
            self._stall is None or (stall.code, stall.nodes) != (self._stall.code, self._stall.nodes)
        ):
            yield f"stuck {stall.code} {fold_names(stall.nodes)}: {stall.seen}"
            yield f"fix {stall.fix}"
            self._stalled_at = roster.now if self._stall is None else self._stalled_at
            self._stall = stall
        elif stall is None and self._stall is not None and not roster.stopping and not roster.finished:
            slow, self._stall = self._stall.slow, None
            yield f"{'full speed' if slow else 'progress'} again after {format_duration(roster.now - self._stalled_at)}"

    def _notices(self, roster: RunProgress) -> Iterator[str]:
        """What the record lacks, at intervals while it grows."""
        if roster.notices != self._noticed and roster.now - self._noticed_at >= AGAIN_SECONDS:
            self._noticed, self._noticed_at = roster.notices, roster.now
            yield from (f"dropped {notice}" for notice in roster.notices)

    def _compilations(self, roster: RunProgress) -> Iterator[str]:
        """A compilation that lasts, and its end."""
        compiling = sum(row.compiling for row in roster.rows)
        if not compiling:
            since, self._compiling_since = self._compiling_since, None
            if since is not None and self._compiling_said:
                yield f"compiled after {format_duration(roster.now - since)}"
            self._compiling_said = False
            return
        if self._compiling_since is None:
            self._compiling_since = roster.now
        if not self._compiling_said and roster.now - self._compiling_since >= WAIT_SECONDS:
            self._compiling_said = True
            yield f"compiling on {compiling}/{roster.world} ranks"

    def _steps(self, roster: RunProgress) -> Iterator[str]:
        if roster.step is not None and roster.now - self._stepped_at >= AGAIN_SECONDS:
            self._stepped_at = roster.now
            if roster.way is not None:
                if roster.way.step != self._way_step:
                    yield format_progress_line(roster.way)
                self._way_step = roster.way.step
                return
            rate = "" if roster.step_seconds is None else f" {format_pace(roster.step_seconds)}"
            yield f"step {roster.step}{rate}"
