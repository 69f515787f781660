"""The index of each log file: the time, stream and node of each block of bytes, and what is missing.

The log itself contains only the rank's lines, so that grep and tail work. A block counts as written once its index
entry is: what a full disk or a kill truncated is never read.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from aboard.lazy_dataclass import dataclass

# Unix time, offset of the block in the rank's whole log, its bytes (or the dropped ones), stream, flags, node.
ENTRY = Struct("<dQIBBH")

CONTINUES = 1  # its first line continues one that was written before
CUT = 2  # its last newline was added: the line was unfinished or too long
LOST_ON_NODE = 4  # no block: bytes that the node's spool dropped before sending
LOST_ON_DISK = 8  # no block: bytes that didn't fit on this disk
LOST = LOST_ON_NODE | LOST_ON_DISK
MOST = 2**32 - 1

FIRST = "{rank:05d}"
LATER = "{rank:05d}-{base:015d}"
LOG = ".log"
INDEX = ".idx"


class IndexEntry(NamedTuple):
    """One entry, as `ENTRY` packs it; `offset` is the block's position in all output of the rank."""

    at: float
    offset: int
    size: int
    stream: int
    flags: int
    node: int

    @property
    def end(self) -> int:
        return self.offset if self.flags & LOST else self.offset + self.size


@dataclass(frozen=True, kw_only=True)
class LogSegment:
    """A part of a rank's log that starts at byte `base`: a log file, and its index with `entries` entries."""

    rank: int
    base: int
    entries: int = 0

    @property
    def stem(self) -> str:
        return (LATER if self.base else FIRST).format(rank=self.rank, base=self.base)


def parse_segment_name(name: str, size: int) -> LogSegment | None:
    """The segment whose index file has this name and size; None for any other file."""
    stem, dot, kind = name.rpartition(".")
    rank, _, base = stem.partition("-")
    if dot + kind != INDEX or not rank.isdecimal() or not (base or "0").isdecimal():
        return None
    return LogSegment(rank=int(rank), base=int(base or "0"), entries=size // ENTRY.size)


def unpack_entries(data: bytes) -> Iterator[IndexEntry]:
    """The entries in a part of an index file."""
    return map(IndexEntry._make, ENTRY.iter_unpack(data))
