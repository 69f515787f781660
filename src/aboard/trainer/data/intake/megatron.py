"""Reads `.bin` and `.idx` files of gpt-neox and Megatron: one row per document.

The index (all little-endian): MMIDIDX and two NULs, u64 version 1, u8 type of a token, u64 number of sequences,
[u64 length of the table of documents], i32 lengths of sequences, i64 places of sequences in the .bin,
[i64 table of documents: the first sequence of each, and the end]. Megatron-Core may add an i8 a sequence. Fairseq,
where the format comes from, has no table of documents: there, each sequence is one. Both carry version 1 and are
distinguished by size.
"""

import os
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from aboard.diagnoses.untrusted import Untrusted
from aboard.foreign_files import require_regular_file
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.intake.chunks import Chunk, make_broken_chunk, make_cut_off_row
from aboard.trainer.data.rows import DataRow, Ids, InvalidRow, RowLocation

_MAGIC = b"MMIDIDX\x00\x00"
_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2", 9: "<u4", 10: "<u8"}
_SEQUENCE_BYTES = 12  # index bytes per sequence: its length and its offset
_MAX_TOKEN = np.iinfo(np.uint32).max


class _MegatronError(Exception):
    """The files violate the format; the message says how."""


@dataclass(frozen=True, kw_only=True)
class _Index:
    path: str
    kind: np.dtype[np.generic]
    sequences: int
    documents: int
    lengths_at: int
    table_at: int | None

    def table(self, start: int, stop: int) -> np.ndarray:
        """The first sequence of each document from `start` on, and the end of the last."""
        if self.table_at is None:
            return np.arange(start, stop + 1)
        return self._read("<i8", self.table_at, start, stop + 1)

    def lengths(self, start: int, stop: int) -> np.ndarray:
        return self._read("<i4", self.lengths_at, start, stop)

    def places(self, start: int, stop: int) -> np.ndarray:
        return self._read("<i8", self.lengths_at + 4 * self.sequences, start, stop)

    def _read(self, kind: str, at: int, start: int, stop: int) -> np.ndarray:
        width = np.dtype(kind).itemsize
        return np.fromfile(self.path, dtype=kind, count=stop - start, offset=at + width * start)


def list_megatron_chunks(file: Untrusted, path: str, *, every: int) -> list[Chunk]:
    """Runs of documents of about `every` bytes; files that don't belong together give one broken chunk."""
    try:
        index = _read_index(path)
        tokens = Path(_get_bin_path(path)).stat()
        require_regular_file(tokens)
        size = tokens.st_size
    except (OSError, _MegatronError) as error:
        return [make_broken_chunk(file, path, error)]
    step = max(1, int(index.documents * every / max(size, 1)))
    starts = range(0, index.documents, step)
    return [
        Chunk(
            file=file,
            path=path,
            store="megatron",
            start=start,
            stop=min(start + step, index.documents),
            first=start + 1,
            size=size // len(starts),
        )
        for start in starts
    ]


def read_megatron_rows(chunk: Chunk) -> Iterator[DataRow | InvalidRow]:
    """The chunk's documents as tokens."""
    at = chunk.start
    try:
        index = _read_index(chunk.path)
        with Path(_get_bin_path(chunk.path)).open("rb", buffering=0) as tokens:
            size = tokens.seek(0, 2)
            table = index.table(chunk.start, chunk.stop)
            for at in range(chunk.start, chunk.stop):
                first, end = int(table[at - chunk.start]), int(table[at - chunk.start + 1])
                where = RowLocation(file=chunk.file, line=at + 1, unit="row")
                sequences = _locate_sequences(index, first, end, size)
                if isinstance(sequences, str):
                    yield InvalidRow(location=where, code="row-tokens", why=Untrusted(sequences))
                    continue
                width = index.kind.itemsize
                parts = [
                    np.frombuffer(os.pread(tokens.fileno(), length * width, place), index.kind)
                    for place, length in sequences
                ]
                yield _make_row(np.concatenate(parts) if parts else np.empty(0, np.int64), where)
    except (OSError, _MegatronError, IndexError, ValueError) as error:
        yield make_cut_off_row(RowLocation(file=chunk.file, line=at + 1, unit="row"), error)


def _get_bin_path(path: str) -> str:
    return path.removesuffix(".idx") + ".bin"


def _read_index(path: str) -> _Index:
    head = len(_MAGIC) + 8 + 1 + 8
    size = Path(path).stat().st_size
    with Path(path).open("rb") as file:
        start = file.read(head + 8)
    if not start.startswith(_MAGIC):
        raise _MegatronError("it does not start with MMIDIDX, as a gpt-neox or Megatron index does")
    if len(start) < head:
        raise _MegatronError(f"it ends within its header, after {len(start)} bytes")
    version, kind, sequences = struct.unpack_from("<QBQ", start, len(_MAGIC))
    if version != 1 or kind not in _TYPES:
        raise _MegatronError(f"version {version} with tokens of type {kind} is not supported")
    rest = size - head - _SEQUENCE_BYTES * sequences
    table = struct.unpack_from("<Q", start, head)[0] if len(start) == head + 8 else 0
    make = partial(_Index, path=path, kind=np.dtype(_TYPES[kind]), sequences=sequences)
    if rest == 0:
        return make(documents=sequences, lengths_at=head, table_at=None)
    if table < 1 or rest - 8 - 8 * table not in {0, sequences}:
        raise _MegatronError(
            f"{size} bytes don't fit an index of {sequences} sequences and {table} document boundaries"
        )
    return make(documents=table - 1, lengths_at=head + 8, table_at=head + 8 + _SEQUENCE_BYTES * sequences)


def _locate_sequences(index: _Index, first: int, end: int, size: int) -> list[tuple[int, int]] | str:
    """Offset and length of each of its sequences, or what is wrong with them."""
    if not 0 <= first <= end <= index.sequences:
        return f"the index refers to sequences {first} to {end} of {index.sequences}"
    width = index.kind.itemsize
    sequences = list(zip(index.places(first, end).tolist(), index.lengths(first, end).tolist(), strict=True))
    for place, length in sequences:
        if place < 0 or length < 0 or place + length * width > size:
            return f"the index refers to {length} tokens at byte {place}, but the .bin file has {size} bytes"
    return sequences


def _make_row(tokens: np.ndarray, location: RowLocation) -> DataRow | InvalidRow:
    if not len(tokens):
        return InvalidRow(location=location, code="row-empty", why=Untrusted("a document without tokens"))
    if tokens.min() < 0 or tokens.max() > _MAX_TOKEN:
        why = f"{int(tokens.min())} or {int(tokens.max())} is not a token id"
        return InvalidRow(location=location, code="row-tokens", why=Untrusted(why))
    ids: Ids = tokens.astype(np.uint32)
    return DataRow(location=location, kind="tokens", ids=ids)
