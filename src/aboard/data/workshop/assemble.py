"""A shard from its units: their tokens, masks and documents one after the other, each verified on the way."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from aboard.data.store.durable import HashedFile, sha256_of
from aboard.data.store.index import DOCUMENT, IndexWriter
from aboard.data.store.manifest import FileEntry, Shard
from aboard.data.workshop.unit import DOCUMENTS, MASK, TOKENS, MaskWriter, UnitRecord, read_unit

_BLOCK = 1 << 20


class Unsound(Exception):
    """The files of a unit are not what its record says: it is to be made again."""

    def __init__(self, unit: Path) -> None:
        super().__init__(str(unit))
        self.unit = unit


def assemble(units: Sequence[Path], folder: Path, name: str) -> Shard:
    """Writes NAME.tokens, .mask and .index.parquet; the mask is left out where every token that can count does."""
    parts = [(unit, _record(unit)) for unit in units]
    documents = sum(record.documents for _, record in parts)
    tokens = sum(record.tokens for _, record in parts)
    supervised = sum(record.supervised for _, record in parts)
    plain = supervised == tokens - documents
    return Shard(
        documents=documents,
        tokens=tokens,
        supervised=supervised,
        token_file=_tokens(parts, folder / f"{name}.tokens"),
        mask_file=None if plain else _mask(parts, folder / f"{name}.mask"),
        index_file=_index(parts, folder / f"{name}.index.parquet"),
    )


_Parts = Sequence[tuple[Path, UnitRecord]]


def _record(unit: Path) -> UnitRecord:
    record = read_unit(unit)
    if record is None:
        raise Unsound(unit)
    return record


def _tokens(parts: _Parts, path: Path) -> FileEntry:
    file = HashedFile(path)
    for unit, record in parts:
        for block in _blocks(unit, record, TOKENS, _BLOCK):
            file.write(block)
    return file.publish(sync=True)


def _mask(parts: _Parts, path: Path) -> FileEntry:
    """Units need not end at a byte: the bits of the next one move up to those of the one before."""
    file = HashedFile(path)
    mask = MaskWriter(file)
    for unit, record in parts:
        left = record.tokens
        for block in _blocks(unit, record, MASK, _BLOCK):
            bits = np.unpackbits(np.frombuffer(block, np.uint8), bitorder="little")[:left]
            mask.add(bits.astype(np.bool_))
            left -= len(bits)
    mask.close()
    return file.publish(sync=True)


def _index(parts: _Parts, path: Path) -> FileEntry:
    file = HashedFile(path)
    index = IndexWriter(file)
    start = 0
    for unit, record in parts:
        for block in _blocks(unit, record, DOCUMENTS, DOCUMENT.itemsize << 15):
            documents = np.frombuffer(block, DOCUMENT).copy()
            documents["offset"] += start
            index.add(documents)
        start += record.tokens
    index.close()
    return file.publish(sync=True)


def _blocks(unit: Path, record: UnitRecord, which: int, size: int) -> Iterator[bytes]:
    """The content of one of its files, if that is what its record says: read twice, so that nothing wrong is used."""
    entry = record.files[which]
    path = unit.parent / entry.name
    try:
        if path.stat().st_size != entry.bytes or sha256_of(path) != entry.sha256:
            raise Unsound(unit)
        with path.open("rb") as file:
            while block := file.read(size):
                yield block
    except OSError as error:
        raise Unsound(unit) from error
