"""Merges the logs of many ranks by corrected time: streamed, with memory bounded by the number of ranks."""

from collections.abc import Callable, Iterator, Mapping
from heapq import merge
from itertools import accumulate
from operator import itemgetter
from re import Pattern

from aboard.core.run.events import STREAMS
from aboard.core.text.fold_lines import OutputLine
from aboard.lazy_dataclass import dataclass
from aboard.record.rank_logs.log_index import IndexEntry
from aboard.record.rank_logs.log_reader import EARLIEST, LogListing, LogReader, ReadPosition


@dataclass(frozen=True, kw_only=True)
class LineSelection:
    """Which lines to yield; None means all. Notes of missing bytes always match, since those may have matched."""

    ranks: frozenset[int] | None = None
    nodes: frozenset[str] | None = None
    stream: str | None = None
    grep: Pattern[str] | None = None


def merge_logs(
    reader: LogReader,
    listing: LogListing,
    selection: LineSelection,
    *,
    after: Mapping[int, ReadPosition] | None = None,
    since: float = EARLIEST,
) -> Iterator[OutputLine]:
    """The lines in time order; the lines of one rank keep their order."""
    after = after or {}
    ranks = (reader.forward(listing, rank, after=after.get(rank), since=since) for rank in listing.ranks)
    timed = [_add_times(_select_lines(lines, listing, selection), max) for lines in ranks]
    return map(itemgetter(1), merge(*timed, key=itemgetter(0)))


def merge_logs_backward(reader: LogReader, listing: LogListing, selection: LineSelection) -> Iterator[OutputLine]:
    """The latest line first: reading the end of a long log costs no more than that of a short one."""
    ranks = (reader.backward(listing, rank) for rank in listing.ranks)
    timed = [_add_times(_select_lines(lines, listing, selection), min) for lines in ranks]
    return map(itemgetter(1), merge(*timed, key=itemgetter(0), reverse=True))


def _select_lines(
    lines: Iterator[tuple[IndexEntry, OutputLine]], listing: LogListing, selection: LineSelection
) -> Iterator[OutputLine]:
    numbers = None
    if selection.nodes is not None:
        numbers = {number for number, name in enumerate(listing.nodes) if name in selection.nodes}
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


def _add_times(
    lines: Iterator[OutputLine], choose: Callable[[float, float], float]
) -> Iterator[tuple[float, OutputLine]]:
    """Pairs lines with times that only grow, or only shrink: a line that took long counts as when it was finished."""
    pairs = ((line.at, line) for line in lines)
    return accumulate(pairs, lambda before, now: (choose(before[0], now[0]), now[1]))
