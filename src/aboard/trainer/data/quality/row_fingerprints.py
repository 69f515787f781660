"""Fingerprints of rows: finds equal rows in bounded memory, for any number of rows."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.rows import DataRow, RowLocation, fingerprint_row

# 16 bytes each. Above this count only rows whose hash ends in zeros are kept; equal rows share a hash, so duplicates
# stay together, and counts among the kept rows are scaled to all.
LIMIT = 1 << 22
_MAX_PARTS = 256

HashArray = npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True)
class FileFingerprints:
    """Rows of one file: the hash and line of each; `like` is the location of any of them."""

    like: RowLocation
    hashes: HashArray
    lines: HashArray


@dataclass(frozen=True, kw_only=True)
class RowFingerprints:
    """All rows while they are few, else one in 2 ** `level`, chosen by hash, so that equal rows stay together."""

    parts: tuple[FileFingerprints, ...] = ()
    level: int = 0

    def __len__(self) -> int:
        return sum(len(part.hashes) for part in self.parts)

    def __add__(self, other: "RowFingerprints") -> "RowFingerprints":
        level = max(self.level, other.level)
        joined = RowFingerprints(parts=(*self.at(level).parts, *other.at(level).parts), level=level)
        if len(joined.parts) > _MAX_PARTS:
            joined = RowFingerprints(parts=tuple(_merge_by_file(joined.parts)), level=level)
        while len(joined) > LIMIT:
            joined = joined.at(joined.level + 1)
        return joined

    def at(self, level: int) -> "RowFingerprints":
        """Thins to a level; a higher level can't be undone."""
        if level <= self.level:
            return self
        mask = np.uint64((1 << level) - 1)
        keep = [(part, (part.hashes & mask) == 0) for part in self.parts]
        thinned = tuple(
            FileFingerprints(like=part.like, hashes=part.hashes[k], lines=part.lines[k]) for part, k in keep
        )
        return RowFingerprints(parts=thinned, level=level)

    @property
    def hashes(self) -> HashArray:
        return np.concatenate([part.hashes for part in self.parts]) if self.parts else np.empty(0, np.uint64)

    def where(self, index: int) -> RowLocation:
        """The location of the row with this index in `hashes`."""
        for part in self.parts:
            if index < len(part.lines):
                return replace(part.like, line=int(part.lines[index]))
            index -= len(part.lines)
        raise IndexError(index)


def compute_fingerprints(rows: Iterable[DataRow]) -> RowFingerprints:
    rows_by_file: dict[Untrusted, list[DataRow]] = {}
    for row in rows:
        rows_by_file.setdefault(row.location.file, []).append(row)
    parts = [
        FileFingerprints(
            like=file_rows[0].location,
            hashes=np.frombuffer(b"".join(fingerprint_row(row)[:8] for row in file_rows), np.uint64),
            lines=np.array([row.location.line for row in file_rows], np.uint64),
        )
        for file_rows in rows_by_file.values()
    ]
    return RowFingerprints(parts=tuple(parts))


def _merge_by_file(parts: Iterable[FileFingerprints]) -> Iterator[FileFingerprints]:
    parts_by_file: dict[Untrusted, list[FileFingerprints]] = {}
    for part in parts:
        parts_by_file.setdefault(part.like.file, []).append(part)
    for file_parts in parts_by_file.values():
        hashes, lines = (
            np.concatenate(each) for each in ([p.hashes for p in file_parts], [p.lines for p in file_parts])
        )
        yield FileFingerprints(like=file_parts[0].like, hashes=hashes, lines=lines)
