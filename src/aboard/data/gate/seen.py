"""How often a sign was seen, and where first: adds up in any order to the same."""

from heapq import nsmallest

from aboard.data.rows import Encoded, Where
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy import dataclass

KEPT = 3
# Tokens of an example that are kept to be shown: a row of a million must not travel between workers.
KEPT_TOKENS = 4096


@dataclass(frozen=True, kw_only=True)
class Example:
    """A row with the sign: where it stands, what was seen there, and its first tokens of `length`, if it has some."""

    where: Where
    note: Untrusted = NO_TEXT
    encoded: Encoded | None = None
    length: int = 0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A count, and the first few by file and line."""

    count: int = 0
    examples: tuple[Example, ...] = ()

    def __add__(self, other: "Seen") -> "Seen":
        first = nsmallest(KEPT, (*self.examples, *other.examples), key=_place)
        return Seen(count=self.count + other.count, examples=tuple(first))

    def __bool__(self) -> bool:
        return self.count > 0


def example(where: Where, note: Untrusted, encoded: Encoded | None) -> Example:
    """With no more of its tokens than are ever shown."""
    length = 0 if encoded is None else len(encoded.ids)
    if encoded is not None and length > KEPT_TOKENS:
        encoded = Encoded(where=where, ids=encoded.ids[:KEPT_TOKENS].copy(), mask=encoded.mask[:KEPT_TOKENS].copy())
    return Example(where=where, note=note, encoded=encoded, length=length)


def _place(found: Example) -> tuple[Untrusted, int]:
    return found.where.file, found.where.line
