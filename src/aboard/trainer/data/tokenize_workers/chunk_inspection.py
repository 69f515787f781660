"""Inspects a chunk as training would read it: statistics for the data check and some rows to show, nothing written."""

from collections.abc import Callable, Sequence
from itertools import islice

from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.intake.chunks import Chunk
from aboard.trainer.data.intake.read_chunk import read_rows
from aboard.trainer.data.intake.row_formats import RowFormat
from aboard.trainer.data.quality.data_check import collect_statistics
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.row_statistics import CheckedRow, DataStatistics
from aboard.trainer.data.rows import DataRow, InvalidRow
from aboard.trainer.data.sampling.validation_split import SplitSide
from aboard.trainer.data.tokenize_workers.encoded_unit import RowEncoder

# Rows encoded at once: few enough for memory.
_BATCH = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectOrder:
    """Inspect this chunk, and return its first `show` valid rows."""

    number: int
    chunk: Chunk
    form: RowFormat
    settings: EncodingSettings
    show: int = 0
    part: SplitSide | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectedChunk:
    """The statistics of a chunk, and its first rows."""

    statistics: DataStatistics
    first_rows: tuple[CheckedRow, ...]


def inspect_chunk(
    order: InspectOrder, encoder: RowEncoder | None, on_progress: Callable[[int, int], None]
) -> InspectedChunk:
    """Without an encoder rows have no tokens; `on_progress` receives rows and characters as they are read."""
    statistics, first_rows = DataStatistics(), list[CheckedRow]()
    rows = read_rows(order.chunk, order.form)
    rows = iter(rows if order.part is None else order.part.of(rows))
    while batch := list(islice(rows, _BATCH)):
        items = _encode_rows(batch, encoder)
        batch_statistics = collect_statistics(items, order.settings, earlier=statistics.sample)
        statistics += batch_statistics
        whole = (item for item in items if item.broken is None)
        first_rows += islice(whole, max(0, order.show - len(first_rows)))
        on_progress(len(items), batch_statistics.characters.total)
    return InspectedChunk(statistics=statistics, first_rows=tuple(first_rows))


def _encode_rows(rows: Sequence[DataRow | InvalidRow], encoder: RowEncoder | None) -> list[CheckedRow]:
    if encoder is None:
        return [CheckedRow(row=row) for row in rows]
    encoded = iter(encoder([row for row in rows if isinstance(row, DataRow)]))
    return [CheckedRow(row=row, encoded=next(encoded) if isinstance(row, DataRow) else None) for row in rows]
