"""`aboard logs`: the lines of a run's ranks, merged by time and folded; the last ones, and those to come."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice, takewhile
from time import sleep

from aboard.core.logline import Line, Told, fold
from aboard.core.rankset import fold_ranks
from aboard.core.words import meant
from aboard.diagnoses import InputError, Problem, commands
from aboard.lazy import dataclass
from aboard.record.merged import Selection, merged, merged_backward
from aboard.record.places import RunDirectory
from aboard.record.reading import DISORDER, NOWHERE, LogReader, Mark, Snapshot

POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Which lines, how many of the last ones (None is all), how far back in seconds, and whether to wait for more.

    `most` bounds how many lines of ranks are looked at for the last ones: 200 lines that each of 8,000 ranks says would
    be 1.6 million, and half a minute.
    """

    selection: Selection
    last: int | None = None
    most: int | None = None
    back: float | None = None
    follow: bool = False
    folded: bool = True


def read_logs(
    run: RunDirectory, wanted: Wanted, *, now: float, wait: Callable[[float], None] = sleep
) -> Iterator[Told]:
    """Ends with the log, or, when following, with the run."""
    with closing(LogReader(run.logs)) as reader:
        live = run.live
        snapshot = reader.snapshot(wanted.selection.ranks)
        if not (wanted.follow and live):
            _refuse_unknown(reader, snapshot, wanted.selection)
        # Of a run that is over, the last ten minutes are those before its end.
        end = now if live else reader.last_time(snapshot)
        since = NOWHERE if wanted.back is None else end - wanted.back
        if wanted.last is None:
            yield from _folded(merged(reader, snapshot, wanted.selection, since=since), wanted)
        else:
            yield from _last(reader, snapshot, wanted, since)
        if wanted.follow:
            yield from _following(run, reader, snapshot, wanted, wait)


def _last(reader: LogReader, snapshot: Snapshot, wanted: Wanted, since: float) -> Iterator[Told]:
    """Read from the end, so that nothing before is touched."""
    lines = merged_backward(reader, snapshot, wanted.selection)
    recent = (line for line in takewhile(lambda line: line.at >= since - DISORDER, lines) if line.at >= since)
    return reversed(list(islice(_folded(islice(recent, wanted.most), wanted), wanted.last)))


def _following(
    run: RunDirectory, reader: LogReader, snapshot: Snapshot, wanted: Wanted, wait: Callable[[float], None]
) -> Iterator[Told]:
    follower = Follower(reader, wanted, behind=snapshot)
    while True:
        # Asked before reading: what the run wrote last is read once more after its end.
        live = run.live
        yield from follower.more()
        if not live:
            return
        wait(POLL_SECONDS)


class Follower:
    """What the ranks have printed since one last asked, at first all that lies behind a snapshot."""

    def __init__(self, reader: LogReader, wanted: Wanted, *, behind: Snapshot | None = None) -> None:
        self._reader = reader
        self._wanted = wanted
        self._marks: dict[int, Mark] = {}
        if behind is not None:
            _move(self._marks, reader, behind)

    def more(self) -> Iterator[Told]:
        snapshot = _changed(self._reader.snapshot(self._wanted.selection.ranks), self._marks)
        yield from _folded(merged(self._reader, snapshot, self._wanted.selection, after=self._marks), self._wanted)
        _move(self._marks, self._reader, snapshot)


def _changed(snapshot: Snapshot, marks: dict[int, Mark]) -> Snapshot:
    """The ranks that have printed since."""
    ranks = {
        rank: segments
        for rank, segments in snapshot.ranks.items()
        if rank not in marks or (segments[-1].base, segments[-1].entries) != (marks[rank].base, marks[rank].entries)
    }
    return Snapshot(ranks=ranks, nodes=snapshot.nodes)


def _move(marks: dict[int, Mark], reader: LogReader, snapshot: Snapshot) -> None:
    marks.update({rank: reader.mark(segments) for rank, segments in snapshot.ranks.items()})


def _folded(lines: Iterable[Line], wanted: Wanted) -> Iterator[Told]:
    if wanted.folded:
        return fold(lines)
    return (Told(line=line, ranks=[line.rank]) for line in lines)


def _refuse_unknown(reader: LogReader, snapshot: Snapshot, selection: Selection) -> None:
    """Ranks or nodes of which none ever printed are a typing mistake."""
    problems = []
    if selection.ranks is not None and not snapshot.ranks:
        known = fold_ranks(reader.snapshot().ranks)
        seen = f"rank {fold_ranks(selection.ranks)} has printed nothing"
        fix = commands.LOGS_NOTHING.fix("ranks", ranks=known) if known else commands.LOGS_NOTHING.fix("wait")
        problems.append(Problem(where="--rank", seen=seen, fix=fix))
    if selection.nodes is not None and not selection.nodes & set(snapshot.nodes):
        name = min(selection.nodes)
        fix = commands.LOGS_NOTHING.fix("nobody")
        if snapshot.nodes:
            fix = meant(commands.LOGS_NOTHING, name, snapshot.nodes)
        problems.append(Problem(where="--node", seen=f"no rank of {name} has printed anything", fix=fix))
    if problems:
        raise InputError(commands.LOGS_NOTHING, problems)
