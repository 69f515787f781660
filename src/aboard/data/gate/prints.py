"""Fingerprints of rows: which rows are the same, in memory that is bounded however many rows there are."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from aboard.data.rows import Row, Where, fingerprint
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy import dataclass

# 16 bytes each. Above this many, only rows whose hash ends in zeros are kept, in pairs or not at all: what is counted
# among them stands for the rest.
LIMIT = 1 << 22
_PARTS = 256

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows of one file: the hash of each, and its line. `like` is any of their places."""

    like: Where
    hashes: Words
    lines: Words


@dataclass(frozen=True, kw_only=True)
class Prints:
    """All rows while they are few; of many, one in 2 ** `level`, chosen by hash, so that equal rows stay together."""

    parts: tuple[Part, ...] = ()
    level: int = 0

    def __len__(self) -> int:
        return sum(len(part.hashes) for part in self.parts)

    def __add__(self, other: "Prints") -> "Prints":
        level = max(self.level, other.level)
        joined = Prints(parts=(*self.at(level).parts, *other.at(level).parts), level=level)
        if len(joined.parts) > _PARTS:
            joined = Prints(parts=tuple(_by_file(joined.parts)), level=level)
        while len(joined) > LIMIT:
            joined = joined.at(joined.level + 1)
        return joined

    def at(self, level: int) -> "Prints":
        """Thinned to a level; it can't grow back."""
        if level <= self.level:
            return self
        mask = np.uint64((1 << level) - 1)
        keep = [(part, (part.hashes & mask) == 0) for part in self.parts]
        thinned = tuple(Part(like=part.like, hashes=part.hashes[k], lines=part.lines[k]) for part, k in keep)
        return Prints(parts=thinned, level=level)

    @property
    def hashes(self) -> Words:
        return np.concatenate([part.hashes for part in self.parts]) if self.parts else np.empty(0, np.uint64)

    def where(self, index: int) -> Where:
        """The place of the row that has this index among `hashes`."""
        for part in self.parts:
            if index < len(part.lines):
                return replace(part.like, line=int(part.lines[index]))
            index -= len(part.lines)
        raise IndexError(index)


def prints_of(rows: Iterable[Row]) -> Prints:
    lots: dict[Untrusted, list[Row]] = {}
    for row in rows:
        lots.setdefault(row.where.file, []).append(row)
    parts = [
        Part(
            like=lot[0].where,
            hashes=np.frombuffer(b"".join(fingerprint(row)[:8] for row in lot), np.uint64),
            lines=np.array([row.where.line for row in lot], np.uint64),
        )
        for lot in lots.values()
    ]
    return Prints(parts=tuple(parts))


def _by_file(parts: Iterable[Part]) -> Iterator[Part]:
    lots: dict[Untrusted, list[Part]] = {}
    for part in parts:
        lots.setdefault(part.like.file, []).append(part)
    for lot in lots.values():
        hashes, lines = (np.concatenate(each) for each in ([p.hashes for p in lot], [p.lines for p in lot]))
        yield Part(like=lot[0].like, hashes=hashes, lines=lines)
