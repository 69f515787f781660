"""The index beside each log file: which bytes came when, by which stream, from which node; and what is missing.

The log itself holds nothing but a rank's lines, so that grep and tail do what they say. A block of lines counts as
written when its index entry is: what a full disk or a kill cut short is never read.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from aboard.lazy_dataclass import dataclass

# Seconds since 1970, where the block begins in the rank's whole log, its bytes (or those dropped), stream, flags, node.
ENTRY = Struct("<dQIBBH")

CONTINUES = 1  # its first line is the rest of one whose beginning was written before
CUT = 2  # its last newline is ours: the line was not finished, or too long
LOST_ON_NODE = 4  # no block: bytes that the node's spool dropped before they were sent
LOST_ON_DISK = 8  # no block: bytes for which this disk had no room
LOST = LOST_ON_NODE | LOST_ON_DISK
MOST = 2**32 - 1

FIRST = "{rank:05d}"
LATER = "{rank:05d}-{base:015d}"
LOG = ".log"
INDEX = ".idx"


class IndexEntry(NamedTuple):
    """One entry, as `ENTRY` packs it; `offset` is where the block begins in all that the rank ever printed."""

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
    """A part of a rank's log, from the byte `base` on: a log file and its index, of which `entries` are written."""

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
