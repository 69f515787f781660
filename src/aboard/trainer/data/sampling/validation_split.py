"""Splits a validation set from the training rows by row content, so that equal rows fall on the same side."""

from collections.abc import Iterable, Iterator
from typing import Literal

from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.rows import DataRow, InvalidRow, fingerprint_row


@dataclass(frozen=True, kw_only=True)
class SplitSide:
    """One side of a split: `share` of the rows are validation, the others training."""

    name: Literal["train", "validation"]
    share: float

    def holds(self, row: DataRow) -> bool:
        """Whether the row is on this side: the same result on every machine, in any order, for any number of rows."""
        position = int.from_bytes(fingerprint_row(row)[:8], "little") / 2**64
        return (position < self.share) == (self.name == "validation")

    def of(self, rows: Iterable[DataRow | InvalidRow]) -> Iterator[DataRow | InvalidRow]:
        """The rows of this side; invalid rows are reported once, on the training side."""
        for row in rows:
            if (self.name == "train") if isinstance(row, InvalidRow) else self.holds(row):
                yield row
