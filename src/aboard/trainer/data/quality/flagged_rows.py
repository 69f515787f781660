"""How many rows have a flag, and the first of them; addition gives the same result in any order."""

from heapq import nsmallest

from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.rows import EncodedRow, RowLocation

MAX_EXAMPLES = 3
# Tokens kept of an example row: a row of a million tokens must not travel between workers.
MAX_EXAMPLE_TOKENS = 4096


@dataclass(frozen=True, kw_only=True)
class ExampleRow:
    """A flagged row: its location, a note, and its first tokens out of `length`, if it has any."""

    location: RowLocation
    note: Untrusted = NO_TEXT
    encoded: EncodedRow | None = None
    length: int = 0


@dataclass(frozen=True, kw_only=True)
class FlaggedRows:
    """A count, and the first few by file and line."""

    count: int = 0
    examples: tuple[ExampleRow, ...] = ()

    def __add__(self, other: "FlaggedRows") -> "FlaggedRows":
        first = nsmallest(MAX_EXAMPLES, (*self.examples, *other.examples), key=_get_position)
        return FlaggedRows(count=self.count + other.count, examples=tuple(first))

    def __bool__(self) -> bool:
        return self.count > 0


def make_example(location: RowLocation, note: Untrusted, encoded: EncodedRow | None) -> ExampleRow:
    """Keeps no more tokens than are ever shown."""
    length = 0 if encoded is None else len(encoded.ids)
    if encoded is not None and length > MAX_EXAMPLE_TOKENS:
        encoded = EncodedRow(
            location=location,
            ids=encoded.ids[:MAX_EXAMPLE_TOKENS].copy(),
            mask=encoded.mask[:MAX_EXAMPLE_TOKENS].copy(),
        )
    return ExampleRow(location=location, note=note, encoded=encoded, length=length)


def _get_position(row: ExampleRow) -> tuple[Untrusted, int]:
    return row.location.file, row.location.line
