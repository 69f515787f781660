"""The logs of many ranks as one, by corrected time: streamed, so that memory is bounded by the number of ranks."""

from collections.abc import Iterator, Mapping
from heapq import merge
from operator import itemgetter
from re import Pattern

from aboard.core.logline import Line
from aboard.lazy import dataclass
from aboard.record.index import STREAMS, Entry
from aboard.record.reading import NOWHERE, LogReader, Mark, Snapshot


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which lines are wanted; None means all. Notes of what is missing always are: it may have been what was wanted."""

    ranks: frozenset[int] | None = None
    nodes: frozenset[str] | None = None
    stream: str | None = None
    grep: Pattern[str] | None = None


def merged(
    reader: LogReader,
    snapshot: Snapshot,
    selection: Selection,
    *,
    after: Mapping[int, Mark] | None = None,
    since: float = NOWHERE,
) -> Iterator[Line]:
    """In the order of time; the lines of one rank keep theirs."""
    after = after or {}
    ranks = (reader.forward(snapshot, rank, after=after.get(rank), since=since) for rank in snapshot.ranks)
    timed = [_ascending(_wanted(lines, snapshot, selection)) for lines in ranks]
    return map(itemgetter(1), merge(*timed, key=itemgetter(0)))


def merged_backward(reader: LogReader, snapshot: Snapshot, selection: Selection) -> Iterator[Line]:
    """The latest first: the end of a long log costs no more than that of a short one."""
    ranks = (reader.backward(snapshot, rank) for rank in snapshot.ranks)
    timed = [_descending(_wanted(lines, snapshot, selection)) for lines in ranks]
    return map(itemgetter(1), merge(*timed, key=itemgetter(0), reverse=True))


def _wanted(lines: Iterator[tuple[Entry, Line]], snapshot: Snapshot, selection: Selection) -> Iterator[Line]:
    numbers = None
    if selection.nodes is not None:
        numbers = {number for number, name in enumerate(snapshot.nodes) if name in selection.nodes}
    stream = None if selection.stream is None else STREAMS.index(selection.stream)
    search = selection.grep.search if selection.grep else None
    for entry, line in lines:
        if numbers is not None and entry.node not in numbers:
            continue
        if line.missing or (
            (stream is None or entry.stream == stream)
            and (search is None or search(line.text.decode("utf-8", "replace")))
        ):
            yield line


def _ascending(lines: Iterator[Line]) -> Iterator[tuple[float, Line]]:
    """A line that began early and was finished late stands where it was finished: merging needs an order."""
    time = NOWHERE
    for line in lines:
        time = max(time, line.at)
        yield time, line


def _descending(lines: Iterator[Line]) -> Iterator[tuple[float, Line]]:
    time = -NOWHERE
    for line in lines:
        time = min(time, line.at)
        yield time, line
