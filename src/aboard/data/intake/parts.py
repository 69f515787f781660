"""A validation part out of the training rows: by the content of a row, so that equal rows fall on the same side."""

from collections.abc import Iterable, Iterator
from typing import Literal

from aboard.data.rows import Broken, Row, fingerprint
from aboard.lazy import dataclass


@dataclass(frozen=True, kw_only=True)
class Part:
    """One side of a split: `share` of the rows are validation, the others train."""

    name: Literal["train", "validation"]
    share: float

    def holds(self, row: Row) -> bool:
        """Whether the row is on this side: the same answer on every machine, in any order, for any number of rows."""
        drawn = int.from_bytes(fingerprint(row)[:8], "little") / 2**64
        return (drawn < self.share) == (self.name == "validation")

    def of(self, rows: Iterable[Row | Broken]) -> Iterator[Row | Broken]:
        """The rows of this side; what is broken is told once, on the training side."""
        for row in rows:
            if (self.name == "train") if isinstance(row, Broken) else self.holds(row):
                yield row
