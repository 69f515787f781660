"""Parquet and Arrow files: read as batches of columns, yielded row by row."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from aboard.diagnoses.untrusted import Untrusted
from aboard.trainer.data.intake.chunks import Chunk, format_error, make_broken_chunk, make_cut_off_row
from aboard.trainer.data.intake.jsonl_and_text import Record
from aboard.trainer.data.intake.memory_limit import limit_memory
from aboard.trainer.data.rows import InvalidRow, RowLocation

_BATCH = 256
# What a batch may take: a file of 2 KB can describe 100 GB.
BATCH_BYTES = 2 << 30
_FILE_MAGIC = b"ARROW1"
ARROW_ERRORS = (OSError, EOFError, ValueError, OverflowError, MemoryError, pa.ArrowException)


def list_parquet_chunks(file: Untrusted, path: str, *, every: int) -> list[Chunk]:
    """Adjacent row groups up to `every` bytes; an invalid file gives one broken chunk."""
    try:
        with _open_parquet(path) as parquet:
            groups = [parquet.metadata.row_group(at) for at in range(parquet.metadata.num_row_groups)]
            sizes = [(group.num_rows, group.total_byte_size) for group in groups]
    except ARROW_ERRORS as error:
        return [make_broken_chunk(file, path, error)]
    return _group_chunks(Chunk(file=file, path=path, store="parquet"), sizes, every)


def list_arrow_chunks(file: Untrusted, path: str, *, every: int) -> list[Chunk]:
    """Adjacent record batches up to `every` bytes."""
    try:
        # Not nbytes, which follows unchecked offsets and reads out of bounds in a damaged file.
        sizes = [(batch.num_rows, batch.get_total_buffer_size()) for batch in _read_batches(path, 0, 0)]
    except ARROW_ERRORS as error:
        return [make_broken_chunk(file, path, error)]
    return _group_chunks(Chunk(file=file, path=path, store="arrow"), sizes, every)


def count_arrow_rows(path: str) -> int:
    """The number of rows of an arrow file."""
    return sum(batch.num_rows for batch in _read_batches(path, 0, 0))


def read_parquet_records(chunk: Chunk, columns: tuple[str, ...] | None = None) -> Iterator[Record | InvalidRow]:
    """The rows of the chunk's row groups; if columns are given, only those are read."""
    row = chunk.first
    try:
        with _open_parquet(chunk.path) as parquet:
            selected = None if columns is None else [name for name in columns if name in parquet.schema_arrow.names]
            for group in range(chunk.start, chunk.stop):
                for batch in _read_group(parquet, group, selected):
                    yield from _convert_batch(batch, chunk.file, row)
                    row += batch.num_rows
    except ARROW_ERRORS as error:
        yield make_cut_off_row(RowLocation(file=chunk.file, line=row, unit="row"), error)


def read_arrow_records(chunk: Chunk, columns: tuple[str, ...] | None = None) -> Iterator[Record | InvalidRow]:
    """The rows of the chunk's record batches; if columns are given, only those are read."""
    row = chunk.first
    try:
        for whole in _read_batches(chunk.path, chunk.start, chunk.stop):
            selected = [name for name in whole.schema.names if columns is None or name in columns]
            for at in range(0, whole.num_rows, _BATCH):
                batch = whole.select(selected).slice(at, _BATCH)
                yield from _convert_batch(batch, chunk.file, row)
                row += batch.num_rows
    except ARROW_ERRORS as error:
        yield make_cut_off_row(RowLocation(file=chunk.file, line=row, unit="row"), error)


def _open_parquet(path: str) -> pq.ParquetFile:
    # Without these a whole row group is fetched before its first row, and row groups of 1 GB are common.
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)


def _read_group(parquet: pq.ParquetFile, group: int, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
    """The batches of a row group; of one row each where a batch would take too much memory."""
    done = 0
    try:
        for batch in _limit_each(parquet.iter_batches(_BATCH, [group], columns=columns, use_threads=False)):
            yield batch
            done += batch.num_rows
    except MemoryError:
        singly = _limit_each(parquet.iter_batches(1, [group], columns=columns, use_threads=False))
        yield from islice(singly, done, None)


def _limit_each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches; raises MemoryError for one that takes too much."""
    iterator = iter(batches)
    while True:
        with limit_memory(BATCH_BYTES):
            batch = next(iterator, None)
        if batch is None:
            return
        yield batch


def _read_batches(path: str, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Record batches without a copy: of the file format, or of the stream format that `datasets` writes."""
    with Path(path).open("rb") as file:
        is_file = file.read(len(_FILE_MAGIC)) == _FILE_MAGIC
    with pa.memory_map(path) as source:
        if is_file:
            reader = pa.ipc.open_file(source)
            yield from _limit_each(map(reader.get_batch, range(start, stop or reader.num_record_batches)))
            return
        for at, batch in enumerate(_limit_each(pa.ipc.open_stream(source))):
            if stop and at >= stop:
                return
            if at >= start:
                yield batch


def _group_chunks(whole: Chunk, sizes: list[tuple[int, int]], every: int) -> list[Chunk]:
    chunks: list[Chunk] = []
    start, first, rows, size = 0, 1, 0, 0
    for at, (count, length) in enumerate(sizes, start=1):
        rows, size = rows + count, size + length
        if size >= every or at == len(sizes):
            chunks.append(replace(whole, start=start, stop=at, first=first, size=size))
            start, first, rows, size = at, first + rows, 0, 0
    return chunks


def _convert_batch(batch: pa.RecordBatch, file: Untrusted, first: int) -> Iterator[Record | InvalidRow]:
    try:
        batch.validate(full=True)
        names = batch.schema.names
        columns = [_convert_column(batch.column(at)) for at in range(batch.num_columns)]
    except ARROW_ERRORS as error:
        if batch.num_rows > 1:  # one bad row spoils a batch: find it
            for at in range(batch.num_rows):
                yield from _convert_batch(batch.slice(at, 1), file, first + at)
        else:
            why = f"a value that can't be read: {format_error(error)}"
            yield InvalidRow(
                location=RowLocation(file=file, line=first, unit="row"), code="row-utf8", why=Untrusted(why)
            )
        return
    for at in range(batch.num_rows):
        record = {name: column[at] for name, column in zip(names, columns, strict=True)}
        yield RowLocation(file=file, line=first + at, unit="row"), record


def _convert_column(column: pa.Array) -> list[Any]:
    """Python values; integer lists stay arrays, since one object per token costs more than the token."""
    kind = _find_plain_type(column.type)
    if kind != column.type:
        # Rows that share a value become copies of it in Python: they fit if the written-out column does. A cast would
        # write out the items of other rows too.
        column = column.take(pa.array(range(len(column))))
        with limit_memory(BATCH_BYTES):
            column = column.cast(kind)
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_integer(kind.value_type):
        values, offsets = column.values, column.offsets.to_numpy()
        if values.null_count == 0:
            flat = values.to_numpy(zero_copy_only=False)
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            pairs = zip(offsets[:-1], offsets[1:], valid, strict=True)
            return [flat[start:stop] if present else None for start, stop, present in pairs]
    items = column.to_pylist()
    return [_drop_nulls(value) for value in items] if pa.types.is_nested(kind) else items


def _find_plain_type(kind: pa.DataType) -> pa.DataType:
    """The type in which no two rows share the bytes of a value."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _find_plain_type(kind.value_type)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return pa.large_string() if types.is_string_view(kind) else pa.large_binary()
    if types.is_list_view(kind) or types.is_large_list_view(kind) or types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_find_plain_type(kind.value_type)))
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_find_plain_type(kind.value_type)))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_find_plain_type(field.type)) for field in kind])
    return kind


def _drop_nulls(value: object) -> Any:
    """Removes nulls that mean "no such key": all structs of a column share one set of keys."""
    if isinstance(value, dict):
        return {key: _drop_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_drop_nulls(item) for item in value]
    return value
