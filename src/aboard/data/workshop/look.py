"""Looking at a chunk as training would read it: counted for the gate, some rows kept to be shown, nothing written."""

from collections.abc import Callable, Sequence
from itertools import islice

from aboard.data.gate.judge import tally
from aboard.data.gate.tally import Item, Tally
from aboard.data.gate.terms import Terms
from aboard.data.intake.chunks import Chunk
from aboard.data.intake.formats import Format
from aboard.data.intake.read import read
from aboard.data.rows import Broken, Row
from aboard.data.workshop.unit import Encode
from aboard.lazy import dataclass

# Rows that are encoded at once: few enough to be held.
_BATCH = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class LookOrder:
    """Look at this chunk, and bring its first `show` rows that aren't broken."""

    number: int
    chunk: Chunk
    form: Format
    terms: Terms
    show: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Looked:
    """What was counted in a chunk, and its first rows."""

    tally: Tally
    shown: tuple[Item, ...]


def look_at(order: LookOrder, encode: Encode | None, tell: Callable[[int, int], None]) -> Looked:
    """Without an encoder rows have no tokens; `tell` hears of rows and characters as they are read."""
    counted, shown = Tally(), list[Item]()
    rows = read(order.chunk, order.form)
    while batch := list(islice(rows, _BATCH)):
        items = _items(batch, encode)
        found = tally(items, order.terms)
        counted += found
        whole = (item for item in items if item.broken is None)
        shown += islice(whole, max(0, order.show - len(shown)))
        tell(len(items), found.characters.total)
    return Looked(tally=counted, shown=tuple(shown))


def _items(rows: Sequence[Row | Broken], encode: Encode | None) -> list[Item]:
    if encode is None:
        return [Item(row=row) for row in rows]
    encoded = iter(encode([row for row in rows if isinstance(row, Row)]))
    return [Item(row=row, encoded=next(encoded) if isinstance(row, Row) else None) for row in rows]
