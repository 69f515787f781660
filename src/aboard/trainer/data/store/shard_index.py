"""The index of a shard: one Parquet row per document, read by row groups in bounded memory."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from aboard.file_integrity import make_damage_error

# A document: its first token in the shard, its tokens, its supervised tokens, whether it must not be split, its origin,
# and 8 bytes of the hash of its tokens, by which equal documents are found.
DOCUMENT_DTYPE = np.dtype(
    [
        ("offset", "<u8"),
        ("length", "<u4"),
        ("supervised", "<u4"),
        ("whole", "?"),
        ("origin", "<u4"),
        ("line", "<u8"),
        ("content", "<u8"),
    ]
)
Documents = NDArray[np.void]
# Small enough that a random document costs about a millisecond, large enough for Parquet to be compact.
ROW_GROUP_SIZE = 1 << 15
# Of other writers; a file of a few KB can claim any number.
MAX_ROW_GROUP = 1 << 24

_NAMES: tuple[str, ...] = DOCUMENT_DTYPE.names or ()
_SCHEMA = pa.schema(
    [pa.field(name, pa.from_numpy_dtype(DOCUMENT_DTYPE[name].newbyteorder("=")), nullable=False) for name in _NAMES]
)


class ShardIndexWriter:
    """Row groups of one size, whatever the blocks in which documents arrive: equal documents give equal bytes."""

    def __init__(self, sink: Any) -> None:
        # Dictionaries suit columns with few values; content hashes can't be compressed.
        few = ["whole", "origin"]
        self._writer = pq.ParquetWriter(sink, _SCHEMA, compression="zstd", use_dictionary=few, version="2.6")
        self._waiting = np.empty(0, DOCUMENT_DTYPE)

    def add(self, documents: Documents) -> None:
        self._waiting = np.concatenate([self._waiting, documents])
        while len(self._waiting) >= ROW_GROUP_SIZE:
            self._write(self._waiting[:ROW_GROUP_SIZE])
            self._waiting = self._waiting[ROW_GROUP_SIZE:]

    def close(self) -> None:
        if len(self._waiting):
            self._write(self._waiting)
        self._writer.close()

    def _write(self, documents: Documents) -> None:
        columns = [pa.array(np.ascontiguousarray(documents[name])) for name in _NAMES]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA), row_group_size=ROW_GROUP_SIZE)


class ShardIndex:
    """The documents of one shard, by number or in order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # By pread: not every cloud file system supports mmap.
            self._file = pq.ParquetFile(path, memory_map=False)
        except (OSError, pa.ArrowException) as error:
            raise make_damage_error(path, f"it is not a Parquet file ({error})") from error
        missing = [name for name in _NAMES if name not in self._file.schema_arrow.names and name not in _OPTIONAL]
        if missing:
            raise make_damage_error(path, f"it has no column {', '.join(missing)}")
        counts = [self._file.metadata.row_group(group).num_rows for group in range(self._file.num_row_groups)]
        if max(counts, default=0) > MAX_ROW_GROUP:
            raise make_damage_error(path, f"a row group has {max(counts):,} rows, more than {MAX_ROW_GROUP:,}")
        self._ends = np.cumsum(counts, dtype=np.int64)
        self._group = lru_cache(maxsize=4)(self._read)

    def __len__(self) -> int:
        return int(self._file.metadata.num_rows)

    def __getitem__(self, number: int) -> np.void:
        group = int(np.searchsorted(self._ends, number, side="right"))
        start = int(self._ends[group - 1]) if group else 0
        found: np.void = self._group(group)[number - start]
        return found

    def __iter__(self) -> Iterator[Documents]:
        """All documents, one row group at a time."""
        return (self._read(group) for group in range(len(self._ends)))

    def _read(self, group: int) -> Documents:
        try:
            table = self._file.read_row_group(group)
        except (OSError, pa.ArrowException) as error:
            raise make_damage_error(self._path, f"row group {group} can't be read ({error})") from error
        documents = np.zeros(table.num_rows, DOCUMENT_DTYPE)
        for name in _NAMES:
            if name in table.column_names:
                documents[name] = table.column(name).to_numpy()
        return documents


# External writers may omit these: documents may then be split and have no origin.
_OPTIONAL = frozenset({"whole", "origin", "line", "content"})
