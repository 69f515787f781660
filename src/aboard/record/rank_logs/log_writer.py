"""Writes the logs of all ranks: buffered, limited in size, only whole lines."""

from collections.abc import Callable
from pathlib import Path

from aboard.core.run.events import STREAMS
from aboard.core.text.byte_sizes import MIB
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.record.rank_logs.line_splitter import Block, LineSplitter
from aboard.record.rank_logs.log_index import LOST_ON_NODE
from aboard.record.rank_logs.node_table import NodeTable
from aboard.record.rank_logs.open_files import OpenFiles
from aboard.record.rank_logs.rank_log import RankLog, list_stored_segments

# Memory limits: whole lines of one rank, whole lines of all, and unfinished lines of all.
RANK_BUFFER = MIB // 4
WHOLE_BUFFER = 64 * MIB
UNFINISHED = 64 * MIB
# A tick flushes up to this many ranks; with more ranks, a fifth each time, so none is more than 5 s late.
AT_ONCE = 1000
TICKS_LATE = 5
_SMALLEST_SEGMENT = MIB // 16
_NUMBER_OF = {name: number for number, name in enumerate(STREAMS)}


@dataclass(frozen=True, kw_only=True)
class LogLimits:
    """Limits in bytes on disk, of one rank and of the whole run.

    Both are enforced by dropping segments, which are an eighth of a rank's limit, or less if there are so many ranks
    that the run's limit would not fit four of each. The rank with the most data loses first, so a flood by one rank
    never costs another its log.
    """

    rank: int = 256 * MIB
    run: int = 16_384 * MIB

    def segment(self, ranks: int) -> int:
        return max(_SMALLEST_SEGMENT, min(self.rank // 8, self.run // (4 * max(1, ranks))))


class LogWriter:
    """Accepts chunks of output of any rank in any order. Disk errors never raise.

    Appends to what an earlier writer left in the folder.
    """

    def __init__(self, folder: Path, *, ranks: int, limits: LogLimits) -> None:
        self._files = OpenFiles(folder, write=True)
        self._nodes = NodeTable(folder)
        self._limits = limits
        self._segment_limit = limits.segment(ranks)
        self._buffer_limit = min(RANK_BUFFER, self._segment_limit // 2)
        self._ranks = {
            rank: RankLog(rank, self._files, self._segment_limit, left)
            for rank, left in list_stored_segments(folder).items()
        }
        self._dirty: dict[int, RankLog] = {}
        self._open: dict[tuple[int, int, int], LineSplitter] = {}
        self._waiting = 0
        self._buffered = 0
        self._size = sum(log.size for log in self._ranks.values())
        self._now = 0.0
        self.lost_on_nodes = 0
        self.lost_on_disk = 0
        self.past_limits = 0

    def take(
        self, rank: int, node: str, stream: str, data: bytes, at: float, *, dropped: int = 0, end: bool = False
    ) -> None:
        """Adds a chunk: `dropped` bytes were lost before it; `end` says that it is the last."""
        log = self._ranks.get(rank) or self._new(rank)
        number, place = _NUMBER_OF.get(stream, 0), self._nodes.number(node)
        splitter = log.splitters[number]
        before, buffered = log.waiting, splitter.buffered
        if dropped:
            self.lost_on_nodes += dropped
            self._add(log, splitter.finish(), number, place)
            splitter.new_line()
            log.add_gap(dropped, at, number, place, LOST_ON_NODE)
        self._add(log, splitter.feed(data, at), number, place)
        if end:
            self._add(log, splitter.finish(), number, place)
        if splitter.buffered:
            self._open[rank, number, place] = splitter
        self._buffered += splitter.buffered - buffered
        self._now = max(self._now, at)
        self._grew(log, before)
        if self._buffered > UNFINISHED:
            self._emit_unfinished(LineSplitter.finish)

    def tick(self, now: float) -> None:
        """Call it about once a second with a monotonic clock: emits unfinished lines that are due, flushes buffers."""
        self._emit_unfinished(lambda splitter: splitter.tick(now))
        self._flush(max(AT_ONCE, len(self._ranks) // TICKS_LATE))

    def flush(self) -> None:
        """Writes all complete lines to disk now."""
        self._flush(len(self._dirty))

    def tail(self, rank: int) -> tuple[Untrusted, ...]:
        """The last few lines of a rank, including those not yet on disk."""
        log = self._ranks.get(rank)
        text = b"".join(log.recent) if log else b""
        return Untrusted(text.decode("utf-8", "replace")).lines()

    def clear_tails(self) -> None:
        for log in self._ranks.values():
            log.recent.clear()

    def close(self) -> None:
        """Writes everything, including unfinished lines."""
        self._emit_unfinished(LineSplitter.finish)
        self.flush()
        self._files.close()

    def _new(self, rank: int) -> RankLog:
        log = self._ranks[rank] = RankLog(rank, self._files, self._segment_limit)
        return log

    def _emit_unfinished(self, how: Callable[[LineSplitter], list[Block]]) -> None:
        """Emits unfinished lines."""
        for (rank, number, place), splitter in list(self._open.items()):
            log = self._ranks[rank]
            before, buffered = log.waiting, splitter.buffered
            self._add(log, how(splitter), number, place)
            self._buffered += splitter.buffered - buffered
            if not splitter.buffered:
                del self._open[rank, number, place]
            self._grew(log, before)

    @staticmethod
    def _add(log: RankLog, blocks: list[Block], stream: int, node: int) -> None:
        for block in blocks:
            log.add(block, stream, node)

    def _grew(self, log: RankLog, before: int) -> None:
        if log.waiting == before:
            return
        self._dirty[log.rank] = log
        self._waiting += log.waiting - before
        if log.waiting >= self._buffer_limit:
            self._write(log)
        elif self._waiting >= WHOLE_BUFFER:
            self.flush()

    def _flush(self, most: int) -> None:
        self._nodes.write()
        for rank in list(self._dirty)[:most]:
            self._write(self._dirty[rank])

    def _write(self, log: RankLog) -> None:
        """Flushes the log, then drops segments that exceed a limit."""
        self._dirty.pop(log.rank, None)
        self._waiting -= log.waiting
        grown, lost = log.flush(self._now)
        self.lost_on_disk += lost
        self._size += grown
        while log.size > self._limits.rank and self._drop(log):
            pass
        while self._size > self._limits.run and self._drop(max(self._ranks.values(), key=lambda each: each.size)):
            pass

    def _drop(self, log: RankLog) -> bool:
        lines, freed = log.drop_oldest()
        self._size -= freed
        self.past_limits += lines
        return freed > 0
