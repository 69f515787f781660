"""Reads a chunk: as raw records, and as rows of a format."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from aboard.trainer.data.intake.chunks import Chunk
from aboard.trainer.data.intake.json_array import read_json_array
from aboard.trainer.data.intake.jsonl_and_text import Record, read_json_lines, read_text_lines
from aboard.trainer.data.intake.megatron import read_megatron_rows
from aboard.trainer.data.intake.parquet_arrow import read_arrow_records, read_parquet_records
from aboard.trainer.data.intake.record_to_row import build_row
from aboard.trainer.data.intake.row_formats import RowFormat, recognize_format
from aboard.trainer.data.rows import DataRow, InvalidRow, RowLocation

# Rows of one source share their columns; several are inspected because a column may be null in the first.
FORMAT_SAMPLE_ROWS = 64
_MAX_BROKEN_SAMPLE = 1_000


def read_rows(chunk: Chunk, row_format: RowFormat) -> Iterator[DataRow | InvalidRow]:
    """The chunk's rows in this format; a row that doesn't fit gives an InvalidRow in its place."""
    if chunk.store == "megatron":
        yield from read_megatron_rows(chunk)
        return
    for record in read_records(chunk, row_format.columns):
        yield record if isinstance(record, InvalidRow) else build_row(record, row_format)


def detect_format(
    chunks: Sequence[Chunk], *, format_name: str | None = None, text_column: str | None = None
) -> RowFormat:
    """The format of a source by the first records of its chunks; raises if it is ambiguous."""
    if any(chunk.store == "megatron" for chunk in chunks):
        return RowFormat(name="tokens", why="a gpt-neox or Megatron index", columns=("input_ids",))
    first = islice(
        (record for chunk in chunks for record in read_records(chunk)), FORMAT_SAMPLE_ROWS + _MAX_BROKEN_SAMPLE
    )
    columns = (record[1] for record in first if not isinstance(record, InvalidRow))
    files = {(chunk.file, chunk.store) for chunk in chunks}
    file = chunks[0].file if len(files) == 1 and chunks[0].store == "jsonl" else None
    return recognize_format(
        list(islice(columns, FORMAT_SAMPLE_ROWS)), format_name=format_name, text_column=text_column, file=file
    )


def read_records(chunk: Chunk, columns: tuple[str, ...] | None = None) -> Iterable[Record | InvalidRow]:
    """The chunk's records before any format: a location and its columns (all of them if the file can't skip any)."""
    match chunk.store:
        case "jsonl":
            return read_json_lines(chunk)
        case "text":
            return read_text_lines(chunk)
        case "json":
            return read_json_array(chunk)
        case "parquet":
            return read_parquet_records(chunk, columns)
        case "arrow":
            return read_arrow_records(chunk, columns)
        case _:
            where = RowLocation(file=chunk.file, line=1)
            return [InvalidRow(location=where, code="file-unreadable", why=chunk.why)]
