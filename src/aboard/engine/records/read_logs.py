"""`aboard logs`: a run's output lines, merged by time and folded; the last ones, and new ones when following."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice, takewhile
from time import sleep

from aboard.core.text.fold_lines import FoldedLine, OutputLine, fold_lines
from aboard.core.text.input_text import agree, suggest_fix
from aboard.core.text.rank_sets import fold_ranks, name_ranks
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.usage import commands
from aboard.doctor.death.folded_tracebacks import TracebackFolder
from aboard.lazy_dataclass import dataclass
from aboard.record.rank_logs.log_reader import DISORDER, EARLIEST, LogListing, LogReader, ReadPosition
from aboard.record.rank_logs.merged_logs import LineSelection, merge_logs, merge_logs_backward
from aboard.record.run_directory import RunDirectory

POLL_SECONDS = 0.5
# More are not counted to say how many lines were left out: a second of reading.
COUNTED_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class LogQuery:
    """Which lines, how many of the last ones (None is all), how far back in seconds, and whether to wait for more.

    `most` limits how many raw lines are read for the last ones: 200 lines that each of 8,000 ranks prints are 1.6
    million lines, or half a minute. `of_script` selects the output of the script that called the launcher; there, a
    node has a number in place of a rank.
    """

    selection: LineSelection
    last: int | None = None
    most: int | None = None
    back: float | None = None
    follow: bool = False
    folded: bool = True
    of_script: bool = False


def read_logs(
    run: RunDirectory,
    query: LogQuery,
    *,
    now: float,
    wait: Callable[[float], None] = sleep,
    note: Callable[[str], None] = lambda _text: None,
) -> Iterator[FoldedLine]:
    """Yields lines until the end of the log or, when following, of the run; notes that there are earlier ones."""
    with closing(LogReader(run.script_logs if query.of_script else run.logs)) as reader:
        live = run.live
        snapshot = reader.list_segments(query.selection.ranks)
        if not (query.follow and live):
            _refuse_unknown(reader, snapshot, query.selection)
        if not (snapshot.ranks or query.of_script) and run.script_logs.is_dir():
            note(f"no rank has printed anything, but a script has: aboard logs {run.id} --script")
        # For a finished run, `back` counts from its last line.
        end = now if live else reader.last_time(snapshot)
        since = EARLIEST if query.back is None else end - query.back
        if query.last is None:
            yield from _fold_lines(merge_logs(reader, snapshot, query.selection, since=since), query)
        else:
            yield from _read_last(reader, snapshot, query, since, note)
        if query.follow:
            yield from _follow_run(run, reader, snapshot, query, wait)


def _read_last(
    reader: LogReader, listing: LogListing, query: LogQuery, since: float, note: Callable[[str], None]
) -> Iterator[FoldedLine]:
    """Reads from the end, without touching earlier lines."""
    last = query.last or 0
    lines = merge_logs_backward(reader, listing, query.selection)
    recent = (line for line in takewhile(lambda line: line.at >= since - DISORDER, lines) if line.at >= since)
    newest = list(islice(_fold_lines(islice(recent, query.most), query), last + 1))
    if newest[last:] or next(recent, None) is not None:
        is_filtered = query.selection != LineSelection(ranks=query.selection.ranks) or query.back is not None
        total = None if is_filtered else reader.count_lines(listing, COUNTED_BYTES)
        of = "matching lines" if is_filtered else "lines" if total is None else f"of {total:,} lines"
        note(f"last {len(newest[:last]):,} {of}; -n all for the rest")
    return reversed(newest[:last])


def _follow_run(
    run: RunDirectory, reader: LogReader, listing: LogListing, query: LogQuery, wait: Callable[[float], None]
) -> Iterator[FoldedLine]:
    follower = LogFollower(reader, query, listing=listing)
    while True:
        # Checked before reading, so that the last output is still read after the run ends.
        live = run.live
        yield from follower.more()
        if not live:
            return
        wait(POLL_SECONDS)


class LogFollower:
    """Yields the lines printed since the last call; the first call starts after the listing `behind`.

    With `tracebacks`, those that only follow from another rank's death are folded.
    """

    def __init__(
        self,
        reader: LogReader,
        query: LogQuery,
        *,
        listing: LogListing | None = None,
        tracebacks: TracebackFolder | None = None,
    ) -> None:
        self._reader = reader
        self._tracebacks = tracebacks
        self._wanted = query
        self._marks: dict[int, ReadPosition] = {}
        if listing is not None:
            _update_marks(self._marks, reader, listing)

    def more(self, *, last: bool = False) -> Iterator[FoldedLine]:
        snapshot = _select_changed(self._reader.list_segments(self._wanted.selection.ranks), self._marks)
        lines = merge_logs(self._reader, snapshot, self._wanted.selection, after=self._marks)
        if self._tracebacks is not None:
            lines = self._tracebacks.fold(lines, last=last)
        yield from _fold_lines(lines, self._wanted)
        _update_marks(self._marks, self._reader, snapshot)

    def skip(self) -> None:
        """Goes on after all that was printed so far."""
        _update_marks(self._marks, self._reader, self._reader.list_segments(self._wanted.selection.ranks))


def _select_changed(listing: LogListing, marks: dict[int, ReadPosition]) -> LogListing:
    """The ranks that have printed since their marks."""
    ranks = {
        rank: segments
        for rank, segments in listing.ranks.items()
        if rank not in marks or (segments[-1].base, segments[-1].entries) != (marks[rank].base, marks[rank].entries)
    }
    return LogListing(ranks=ranks, nodes=listing.nodes)


def _update_marks(marks: dict[int, ReadPosition], reader: LogReader, listing: LogListing) -> None:
    marks.update({rank: reader.end_position(segments) for rank, segments in listing.ranks.items()})


def _fold_lines(lines: Iterable[OutputLine], query: LogQuery) -> Iterator[FoldedLine]:
    if query.folded:
        return fold_lines(lines)
    return (FoldedLine(line=line, ranks=[line.rank]) for line in lines)


def _refuse_unknown(reader: LogReader, listing: LogListing, selection: LineSelection) -> None:
    """Raises if none of the selected ranks or nodes has ever printed: probably a typo."""
    problems = []
    if selection.ranks is not None and not listing.ranks:
        printed_ranks = fold_ranks(reader.list_segments().ranks)
        seen = f"{name_ranks(selection.ranks)} {agree(selection.ranks, 'has', 'have')} printed nothing"
        fix = (
            commands.LOGS_NOTHING.fix("ranks", ranks=printed_ranks)
            if printed_ranks
            else commands.LOGS_NOTHING.fix("wait")
        )
        problems.append(Problem(where="--rank", seen=seen, fix=fix))
    if selection.nodes is not None and not selection.nodes & set(listing.nodes):
        name = min(selection.nodes)
        fix = commands.LOGS_NOTHING.fix("nobody")
        if listing.nodes:
            fix = suggest_fix(commands.LOGS_NOTHING, name, listing.nodes)
        problems.append(Problem(where="--node", seen=f"no rank on {name} has printed anything", fix=fix))
    if problems:
        raise InputError(commands.LOGS_NOTHING, problems)
