"""Assembles a shard from its units: concatenates tokens, masks and documents, verifying each on the way."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from aboard.durable_files import FileEntry, HashedFile, compute_sha256
from aboard.trainer.data.store.shard_index import DOCUMENT_DTYPE, ShardIndexWriter
from aboard.trainer.data.store.shard_manifest import Shard
from aboard.trainer.data.tokenize_workers.encoded_unit import DOCUMENTS, MASK, TOKENS, MaskWriter, UnitRecord, read_unit

_BLOCK = 1 << 20


class DamagedUnitError(Exception):
    """The files of a unit differ from its record: it must be made again."""

    def __init__(self, unit: Path) -> None:
        super().__init__(str(unit))
        self.unit = unit


def assemble_shard(units: Sequence[Path], folder: Path, name: str) -> Shard:
    """Writes NAME.tokens, .mask and .index.parquet; no mask if every token that can be supervised is."""
    parts = [(unit, _read_record(unit)) for unit in units]
    documents = sum(record.documents for _, record in parts)
    tokens = sum(record.tokens for _, record in parts)
    supervised = sum(record.supervised for _, record in parts)
    plain = supervised == tokens - documents
    return Shard(
        documents=documents,
        tokens=tokens,
        supervised=supervised,
        token_file=_write_tokens(parts, folder / f"{name}.tokens"),
        mask_file=None if plain else _write_mask(parts, folder / f"{name}.mask"),
        index_file=_write_index(parts, folder / f"{name}.index.parquet"),
    )


_UnitRecords = Sequence[tuple[Path, UnitRecord]]


def _read_record(unit: Path) -> UnitRecord:
    record = read_unit(unit)
    if record is None:
        raise DamagedUnitError(unit)
    return record


def _write_tokens(parts: _UnitRecords, path: Path) -> FileEntry:
    file = HashedFile(path)
    for unit, record in parts:
        for block in _read_verified_blocks(unit, record, TOKENS, _BLOCK):
            file.write(block)
    return file.publish(sync=True)


def _write_mask(parts: _UnitRecords, path: Path) -> FileEntry:
    """Units need not end at a byte boundary: the bits of the next one are shifted accordingly."""
    file = HashedFile(path)
    mask = MaskWriter(file)
    for unit, record in parts:
        remaining = record.tokens
        for block in _read_verified_blocks(unit, record, MASK, _BLOCK):
            bits = np.unpackbits(np.frombuffer(block, np.uint8), bitorder="little")[:remaining]
            mask.add(bits.astype(np.bool_))
            remaining -= len(bits)
    mask.close()
    return file.publish(sync=True)


def _write_index(parts: _UnitRecords, path: Path) -> FileEntry:
    file = HashedFile(path)
    index = ShardIndexWriter(file)
    start = 0
    for unit, record in parts:
        for block in _read_verified_blocks(unit, record, DOCUMENTS, DOCUMENT_DTYPE.itemsize << 15):
            documents = np.frombuffer(block, DOCUMENT_DTYPE).copy()
            documents["offset"] += start
            index.add(documents)
        start += record.tokens
    index.close()
    return file.publish(sync=True)


def _read_verified_blocks(unit: Path, record: UnitRecord, which: int, size: int) -> Iterator[bytes]:
    """The content of a file if it matches its record: read twice, so that nothing damaged is used."""
    entry = record.files[which]
    path = unit.parent / entry.name
    try:
        if path.stat().st_size != entry.bytes or compute_sha256(path) != entry.sha256:
            raise DamagedUnitError(unit)
        with path.open("rb") as file:
            while block := file.read(size):
                yield block
    except OSError as error:
        raise DamagedUnitError(unit) from error
