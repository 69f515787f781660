"""Reading a chunk: its records as they stand, and as rows of a format."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from aboard.data.intake.chunks import Chunk
from aboard.data.intake.columnar import arrow_records, parquet_records
from aboard.data.intake.formats import Format, recognise
from aboard.data.intake.lines import Record, json_lines, text_lines
from aboard.data.intake.listed import json_items
from aboard.data.intake.megatron import megatron_rows
from aboard.data.intake.shape import shape
from aboard.data.rows import Broken, Row, Where

# Rows of one source share their columns; more are looked at only because a column may be null in the first.
LOOKED_AT = 64
_BROKEN_AT_MOST = 1_000


def read(chunk: Chunk, form: Format) -> Iterator[Row | Broken]:
    """The chunk's rows as the format reads them; a row that doesn't fit it is a Broken in its place."""
    if chunk.store == "megatron":
        yield from megatron_rows(chunk)
        return
    for record in records(chunk, form.columns):
        yield record if isinstance(record, Broken) else shape(record, form)


def format_of(chunks: Sequence[Chunk], *, given: str | None = None, text_column: str | None = None) -> Format:
    """The format of a source by the first records of its chunks; raises when they leave it open, and says why."""
    if any(chunk.store == "megatron" for chunk in chunks):
        return Format(name="tokens", why="an index of gpt-neox or Megatron", columns=("input_ids",))
    first = islice((record for chunk in chunks for record in records(chunk)), LOOKED_AT + _BROKEN_AT_MOST)
    found = (record[1] for record in first if not isinstance(record, Broken))
    return recognise(list(islice(found, LOOKED_AT)), given=given, text_column=text_column)


def records(chunk: Chunk, columns: tuple[str, ...] | None = None) -> Iterable[Record | Broken]:
    """The chunk's records before any format: a place and its columns (all, where the file can't leave some out)."""
    match chunk.store:
        case "jsonl":
            return json_lines(chunk)
        case "text":
            return text_lines(chunk)
        case "json":
            return json_items(chunk)
        case "parquet":
            return parquet_records(chunk, columns)
        case "arrow":
            return arrow_records(chunk, columns)
        case _:
            where = Where(file=chunk.file, line=1)
            return [Broken(where=where, code="file-unreadable", why=chunk.why)]
