"""Reads the logs of ranks forward and backward, up to their end at the time of the listing."""

import os
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from aboard.core.run.events import STREAMS
from aboard.core.text.fold_lines import OutputLine
from aboard.lazy_dataclass import dataclass
from aboard.record.rank_logs.line_splitter import BLOCK
from aboard.record.rank_logs.log_index import (
    CONTINUES,
    CUT,
    ENTRY,
    INDEX,
    LOG,
    LOST,
    LOST_ON_NODE,
    IndexEntry,
    LogSegment,
    parse_segment_name,
    unpack_entries,
)
from aboard.record.rank_logs.node_table import read_node_names
from aboard.record.rank_logs.open_files import OpenFiles

# Small, since a reader holds this much of thousands of ranks.
_ENTRIES_AT_ONCE = 32
_COUNTED_BYTES = 1 << 20
# Lines are stored in the order of completion, but their time is that of their first byte: up to this many seconds
# apart.
DISORDER = 10.0
EARLIEST = float("-inf")

ON_NODE = "on the node, which printed faster than the connection carries"
ON_DISK = "here, where the disk was full"
PAST_LIMIT = "here, past the limit for one rank's log"


@dataclass(frozen=True, kw_only=True)
class ReadPosition:
    """The position up to which a rank's log was read: entries of a segment, and the byte after them."""

    base: int
    entries: int
    end: int


@dataclass(frozen=True, kw_only=True)
class LogListing:
    """The segments of each rank at one moment, in order, and the names of nodes by number."""

    ranks: Mapping[int, list[LogSegment]]
    nodes: list[str]

    def node(self, number: int) -> str:
        return self.nodes[number] if number < len(self.nodes) else "?"


class LogReader:
    """The logs in one folder. Parts that a writer removes meanwhile are reported as missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = OpenFiles(folder, write=False)

    def list_segments(self, ranks: Collection[int] | None = None) -> LogListing:
        """The segments of these ranks, or of all."""
        found: dict[int, list[LogSegment]] = {}
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    segment = (
                        parse_segment_name(entry.name, entry.stat().st_size) if entry.name.endswith(INDEX) else None
                    )
                    if segment and (ranks is None or segment.rank in ranks):
                        found.setdefault(segment.rank, []).append(segment)
        for segments in found.values():
            segments.sort(key=lambda segment: segment.base)
        return LogListing(ranks=dict(sorted(found.items())), nodes=read_node_names(self._folder))

    def end_position(self, segments: list[LogSegment]) -> ReadPosition:
        """The end of a rank's segments as a position."""
        last = segments[-1]
        return ReadPosition(base=last.base, entries=last.entries, end=self._end(last))

    def last_time(self, listing: LogListing) -> float:
        """The time of the last line of all; 0 if there is none."""
        lasts = (self._entry(each[-1], each[-1].entries - 1) for each in listing.ranks.values() if each[-1].entries)
        return max((entry.at for entry in lasts if entry), default=0.0)

    def count_lines(self, listing: LogListing, most: int) -> int | None:
        """The lines of all ranks; None if their logs have more than so many bytes."""
        segments = [segment for of_rank in listing.ranks.values() for segment in of_rank]
        if sum(self._end(segment) - segment.base for segment in segments) > most:
            return None
        total = 0
        for segment in segments:
            with suppress(FileNotFoundError):
                for start in range(0, self._end(segment) - segment.base, _COUNTED_BYTES):
                    total += self._files.read(segment.stem + LOG, _COUNTED_BYTES, start).count(b"\n")
        return total

    def forward(
        self, listing: LogListing, rank: int, *, after: ReadPosition | None = None, since: float = EARLIEST
    ) -> Iterator[tuple[IndexEntry, OutputLine]]:
        """The rank's lines in the order written, after a position or from a time on."""
        # When reading from a time on, a gap before the first line isn't reported.
        end = after.end if after else 0 if since == EARLIEST else None
        for segment in listing.ranks.get(rank, ()):
            if after and segment.base < after.base:
                continue
            start = after.entries if after and segment.base == after.base else 0
            start = max(start, self._first(segment, since))
            for batch in self._batches(segment, start, segment.entries):
                data = self._data(segment, batch)
                for entry in batch:
                    if entry.at < since:
                        continue
                    if end is not None and entry.offset > end:
                        yield _build_gap(listing, rank, entry, entry.offset - end)
                    end = entry.end
                    for line in _build_lines(listing, rank, entry, data, batch[0].offset):
                        yield entry, line

    def backward(self, listing: LogListing, rank: int) -> Iterator[tuple[IndexEntry, OutputLine]]:
        """The same from the end backward."""
        later: IndexEntry | None = None
        for segment in reversed(listing.ranks.get(rank, [])):
            for stop in range(segment.entries, 0, -_ENTRIES_AT_ONCE):
                for batch in reversed(list(self._batches(segment, max(0, stop - _ENTRIES_AT_ONCE), stop))):
                    data = self._data(segment, batch)
                    for entry in reversed(batch):
                        if later and later.offset > entry.end:
                            yield _build_gap(listing, rank, later, later.offset - entry.end)
                        later = entry
                        for line in reversed(_build_lines(listing, rank, entry, data, batch[0].offset)):
                            yield entry, line

    def close(self) -> None:
        self._files.close()

    def _batches(self, segment: LogSegment, start: int, stop: int) -> Iterator[list[IndexEntry]]:
        """Batches of entries to read together: up to one usual block, or a single larger one."""
        batch: list[IndexEntry] = []
        for entry in self._entries(segment, start, stop):
            if batch and (entry.end - batch[0].offset > BLOCK or len(batch) == _ENTRIES_AT_ONCE):
                yield batch
                batch = []
            batch.append(entry)
        if batch:
            yield batch

    def _data(self, segment: LogSegment, batch: list[IndexEntry]) -> bytes | None:
        """The bytes of the blocks; None if the writer has removed them."""
        start, end = batch[0].offset, batch[-1].end
        if start == end:
            return b""
        try:
            return self._files.read(segment.stem + LOG, end - start, start - segment.base)
        except FileNotFoundError:
            return None

    def _entries(self, segment: LogSegment, start: int, stop: int) -> Iterator[IndexEntry]:
        for first in range(start, stop, _ENTRIES_AT_ONCE):
            size = min(_ENTRIES_AT_ONCE, stop - first) * ENTRY.size
            try:
                data = self._files.read(segment.stem + INDEX, size, first * ENTRY.size)
            except FileNotFoundError:
                return
            yield from unpack_entries(data[: len(data) // ENTRY.size * ENTRY.size])

    def _entry(self, segment: LogSegment, number: int) -> IndexEntry | None:
        return next(self._entries(segment, number, number + 1), None)

    def _first(self, segment: LogSegment, since: float) -> int:
        """The first entry that may be from that time or later."""
        if since == EARLIEST:
            return 0

        def at(number: int) -> float:
            entry = self._entry(segment, number)
            return entry.at if entry else since

        return bisect_left(range(segment.entries), since - DISORDER, key=at)

    def _end(self, segment: LogSegment) -> int:
        entry = self._entry(segment, segment.entries - 1) if segment.entries else None
        return entry.end if entry else segment.base


def _build_lines(listing: LogListing, rank: int, entry: IndexEntry, data: bytes | None, base: int) -> list[OutputLine]:
    """The lines of a block within `data`, which starts at offset `base`."""
    at, node, stream = entry.at, listing.node(entry.node), STREAMS[entry.stream]
    if entry.flags & LOST:
        why = ON_NODE if entry.flags & LOST_ON_NODE else ON_DISK
        return [OutputLine(at, rank, node, stream, b"", missing=entry.size, why=why)]
    if data is None:
        return [OutputLine(at, rank, node, stream, b"", missing=entry.size, why=PAST_LIMIT)]
    # Without the block's final newline.
    texts = data[entry.offset - base : entry.end - base - 1].split(b"\n")
    lines = [OutputLine(at, rank, node, stream, text) for text in texts]
    if entry.flags & CONTINUES:
        lines[0] = lines[0]._replace(continues=True)
    if entry.flags & CUT:
        lines[-1] = lines[-1]._replace(cut=True)
    return lines


def _build_gap(listing: LogListing, rank: int, entry: IndexEntry, missing: int) -> tuple[IndexEntry, OutputLine]:
    node, stream = listing.node(entry.node), STREAMS[entry.stream]
    return entry, OutputLine(entry.at, rank, node, stream, b"", missing=missing, why=PAST_LIMIT)
