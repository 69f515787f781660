"""Writes one rank's log: blocks in memory, then segments, of which the first and the latest are kept."""

from collections import deque
from pathlib import Path

from aboard.core.run.events import STREAMS
from aboard.lazy_dataclass import dataclass
from aboard.record.rank_logs.line_splitter import Block, LineSplitter
from aboard.record.rank_logs.log_index import (
    ENTRY,
    INDEX,
    LOG,
    LOST_ON_DISK,
    MOST,
    LogSegment,
    parse_segment_name,
    unpack_entries,
)
from aboard.record.rank_logs.open_files import OpenFiles

_RECENT = 4
_RECENT_BYTES = 512


@dataclass
class StoredSegment:
    """A segment on disk, and the valid bytes of its two files."""

    segment: LogSegment
    size: int = 0
    index_size: int = 0


class RankLog:
    """Appends blocks of lines. A full disk loses only the blocks being written, which are counted."""

    __slots__ = ("_done", "_end", "_files", "_index", "_lost", "_node", "_parts", "_segment_limit", "_segments", "rank",
                 "recent", "splitters", "waiting")  # fmt: skip

    def __init__(
        self, rank: int, files: OpenFiles, segment_limit: int, left: list[StoredSegment] | None = None
    ) -> None:
        self.rank = rank
        self.splitters = tuple(LineSplitter() for _ in STREAMS)
        self.recent: deque[bytes] = deque(maxlen=_RECENT)
        # Bytes in memory.
        self.waiting = 0
        self._files = files
        self._segment_limit = segment_limit
        self._segments = left or [StoredSegment(LogSegment(rank=rank, base=0))]
        self._parts: list[bytes] = []
        self._index: list[bytes] = []
        self._done = self._end = self._segments[-1].segment.base + self._segments[-1].size
        self._lost = 0
        self._node = 0

    @property
    def size(self) -> int:
        """Its bytes on disk, including indexes."""
        return sum(segment.size + segment.index_size for segment in self._segments)

    def add(self, block: Block, stream: int, node: int) -> None:
        data, at, flags = block
        size = len(data)
        self._parts.append(data)
        self._index.append(ENTRY.pack(at, self._end, size, stream, flags, node))
        self._end += size
        self._node = node
        self.waiting += size + ENTRY.size
        self.recent.append(data[-_RECENT_BYTES:])

    def add_gap(self, count: int, at: float, stream: int, node: int, flag: int) -> None:
        """Records that bytes are missing here."""
        self._index.append(ENTRY.pack(at, self._end, min(count, MOST), stream, flag, node))
        self.waiting += ENTRY.size

    def flush(self, now: float) -> tuple[int, int]:
        """Writes the buffered blocks; returns the bytes added on disk, and those lost. `now` is wall time."""
        data, entries = b"".join(self._parts), b"".join(self._index)
        if not entries:
            return 0, 0
        last = self._segments[-1]
        if last.size and last.size + last.index_size + len(data) > self._segment_limit:
            self._leave(last)
            last = StoredSegment(LogSegment(rank=self.rank, base=self._done))
            self._segments.append(last)
        index_data = self._pack_loss(now) + entries
        if not data and not last.size and last.index_size > self._segment_limit:
            # A segment is named by its first byte, so one without data has no successor: further gaps are left out.
            index_data = b""
        self._parts, self._index, self.waiting = [], [], 0
        try:
            if data:
                self._files.write(last.segment.stem + LOG, data, self._done - last.segment.base)
            self._files.write(last.segment.stem + INDEX, index_data, last.index_size)
        except OSError:
            self._undo_write(last)
            self._lost += len(data)
            return 0, len(data)
        self._lost = 0
        self._done = self._end
        last.size += len(data)
        last.index_size += len(index_data)
        return len(data) + len(index_data), 0

    def drop_oldest(self) -> tuple[int, int]:
        """Removes the oldest segment except the run's first; returns its bytes without and with its index."""
        if len(self._segments) <= 2:  # noqa: PLR2004 - the first, and the one that is being written
            return 0, 0
        oldest = self._segments.pop(1)
        self._files.remove(oldest.segment.stem + LOG)
        self._files.remove(oldest.segment.stem + INDEX)
        return oldest.size, oldest.size + oldest.index_size

    def _pack_loss(self, now: float) -> bytes:
        if not self._lost:
            return b""
        return ENTRY.pack(now, self._done, min(self._lost, MOST), 0, LOST_ON_DISK, self._node)

    def _undo_write(self, last: StoredSegment) -> None:
        """Undoes a failed write on disk and in the offsets: the next block that fits is written here."""
        self._end = self._done
        self._files.truncate(last.segment.stem + LOG, self._done - last.segment.base)
        self._files.truncate(last.segment.stem + INDEX, last.index_size)

    def _leave(self, last: StoredSegment) -> None:
        self._files.close_file(last.segment.stem + LOG)
        self._files.close_file(last.segment.stem + INDEX)


def list_stored_segments(folder: Path) -> dict[int, list[StoredSegment]]:
    """The segments that an earlier writer left, by rank, in order; a block without its index entry doesn't count."""
    found: dict[int, list[StoredSegment]] = {}
    for path in folder.iterdir():
        segment = parse_segment_name(path.name, path.stat().st_size)
        if segment is None:
            continue
        size = segment.entries * ENTRY.size
        end = segment.base
        if size:
            with path.open("rb") as file:
                file.seek(size - ENTRY.size)
                end = next(unpack_entries(file.read(ENTRY.size))).end
        found.setdefault(segment.rank, []).append(StoredSegment(segment, end - segment.base, size))
    for segments in found.values():
        segments.sort(key=lambda each: each.segment.base)
    return found
