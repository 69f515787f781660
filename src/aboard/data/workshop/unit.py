"""A unit of preparation: one chunk of a source as tokens, mask and documents, kept on disk until its shard is whole."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from aboard.core.decoding import decode
from aboard.data.gate.judge import tally
from aboard.data.gate.kept import kept
from aboard.data.gate.tally import Item, Tally
from aboard.data.gate.terms import Terms
from aboard.data.rows import Broken, Encoded, Mask, Row
from aboard.data.store.durable import HashedFile, write_whole
from aboard.data.store.index import DOCUMENT
from aboard.data.store.manifest import SHOWN, BrokenRow, FileEntry
from aboard.diagnoses.untrusted import Untrusted, encode_text
from aboard.lazy import dataclass

# The places of a unit's files in its record.
TOKENS, MASK, DOCUMENTS = range(3)
_ENDINGS = (".tokens", ".mask", ".documents")
_TALLY = "tally"

# What goes to the encoder at once: its results are ten times larger than the text while it works on them.
_BATCH_ROWS = 256
_BATCH_CHARACTERS = 1 << 18


class Sized(Protocol):
    """How many tokens there are: one more than the largest id."""

    @property
    def size(self) -> int: ...


class Encode(Protocol):
    """Rows to tokens; `identity` is a hash of all that decides which. `aboard.data.tokens.encode.Encoder` is one."""

    @property
    def identity(self) -> str: ...

    @property
    def vocabulary(self) -> Sized: ...

    def __call__(self, rows: list[Row]) -> Sequence[Encoded | Broken]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitRecord:
    """What a unit has given; written after its files, so that they are there if it is."""

    rows: int
    documents: int
    tokens: int
    supervised: int
    unit: Literal["line", "row"]
    broken: dict[str, int]
    broken_first: tuple[BrokenRow, ...]
    files: tuple[FileEntry, ...]


def write_unit(
    rows: Iterable[Row | Broken],
    encode: Encode,
    *,
    origin: int,
    path: Path,
    tell: Callable[[int, int], None],
    terms: Terms,
) -> UnitRecord:
    """Encodes the rows into PATH.tokens, .mask and .documents; `tell` hears of rows and tokens as they are done.

    What the gate must know of them goes with the record, on these terms.
    """
    draft = _Draft(path, vocabulary=encode.vocabulary.size, origin=origin, terms=terms)
    try:
        for batch in _batches(rows):
            before = draft.tokens
            draft.take(batch, encode)
            tell(len(batch), draft.tokens - before)
        record = draft.publish()
    except BaseException:
        draft.drop()
        raise
    content = {**asdict(record), _TALLY: kept(draft.tally, origin)}
    write_whole(path.with_suffix(".json"), json.dumps(content, default=encode_text), sync=False)
    return record


def read_unit(path: Path) -> UnitRecord | None:
    """The record of a finished unit; None when there is none that makes sense."""
    try:
        return decode(UnitRecord, _content_of(path), strict=True)
    except (OSError, ValueError):
        return None


def read_tally(path: Path) -> dict[str, Any]:
    """What the gate must know of a finished unit, as `aboard.data.gate.kept` has it."""
    found: dict[str, Any] = _content_of(path)[_TALLY]
    return found


def token_bytes(vocabulary: int) -> Literal[2, 4]:
    return 2 if vocabulary <= 1 << 16 else 4


class MaskWriter:
    """Bits in the order of tokens, the lowest of each byte first; what doesn't fill a byte waits for the next."""

    def __init__(self, file: HashedFile) -> None:
        self._file = file
        self._waiting = np.empty(0, np.bool_)

    def add(self, mask: Mask) -> None:
        bits = np.concatenate([self._waiting, mask])
        whole = len(bits) // 8 * 8
        self._file.write(np.packbits(bits[:whole], bitorder="little").tobytes())
        self._waiting = bits[whole:]

    def close(self) -> None:
        self._file.write(np.packbits(self._waiting, bitorder="little").tobytes())


class _Draft:
    """The files of a unit while they are written."""

    def __init__(self, path: Path, *, vocabulary: int, origin: int, terms: Terms) -> None:
        self._files = [HashedFile(path.with_suffix(ending)) for ending in _ENDINGS]
        self._mask = MaskWriter(self._files[MASK])
        self._vocabulary = vocabulary
        self._dtype = np.dtype(f"<u{token_bytes(vocabulary)}")
        self._origin = origin
        self._terms = terms
        self.tally = Tally()
        self._broken: Counter[str] = Counter()
        self._broken_first: list[BrokenRow] = []
        self._unit: Literal["line", "row"] = "line"
        self.rows = self.documents = self.tokens = self.supervised = 0

    def take(self, batch: Sequence[Row | Broken], encode: Encode) -> None:
        rows = [row for row in batch if isinstance(row, Row)]
        encoded = iter(encode(rows) if rows else ())
        documents: list[tuple[Encoded, Row]] = []
        items: list[Item] = []
        for row in batch:
            result = row if isinstance(row, Broken) else self._judged(next(encoded))
            items.append(Item(row=row, encoded=result if isinstance(row, Row) else None))
            if isinstance(result, Broken):
                self._note(result)
            elif isinstance(row, Row):
                documents.append((result, row))
        self.tally += tally(items, self._terms, prints=False)
        self.rows += len(batch)
        self._unit = batch[-1].where.unit
        if documents:
            self._write(documents)

    def publish(self) -> UnitRecord:
        self._mask.close()
        # Not synced: what a power cut takes is seen by its hash, and made again.
        files = tuple(file.publish(sync=False) for file in self._files)
        return UnitRecord(
            rows=self.rows,
            documents=self.documents,
            tokens=self.tokens,
            supervised=self.supervised,
            unit=self._unit,
            broken=dict(sorted(self._broken.items())),
            broken_first=tuple(self._broken_first),
            files=files,
        )

    def drop(self) -> None:
        for file in self._files:
            file.drop()

    def _judged(self, encoded: Encoded | Broken) -> Encoded | Broken:
        if isinstance(encoded, Broken):
            return encoded
        if not len(encoded.ids):
            return Broken(where=encoded.where, code="row-empty", why=Untrusted("it gives no token"))
        if encoded.ids.max() < self._vocabulary:
            return encoded
        why = f"token {encoded.ids.max()} is not among the {self._vocabulary} of the tokenizer"
        return Broken(where=encoded.where, code="token-unknown", why=Untrusted(why))

    def _note(self, broken: Broken) -> None:
        self._broken[broken.code] += 1
        if len(self._broken_first) < SHOWN:
            row = BrokenRow(origin=self._origin, line=broken.where.line, code=broken.code, why=broken.why)
            self._broken_first.append(row)

    def _write(self, kept: Sequence[tuple[Encoded, Row]]) -> None:
        masks = [encoded.mask.copy() for encoded, _ in kept]
        for mask in masks:
            mask[:1] = False  # nothing predicts a document's first token
        documents = np.zeros(len(kept), DOCUMENT)
        documents["length"] = [len(mask) for mask in masks]
        documents["supervised"] = [np.count_nonzero(mask) for mask in masks]
        documents["offset"] = self.tokens + np.cumsum(documents["length"]) - documents["length"]
        documents["whole"] = [row.kind in {"chat", "pair"} for _, row in kept]
        documents["origin"] = self._origin
        documents["line"] = [row.where.line for _, row in kept]
        documents["content"] = [_content(encoded) for encoded, _ in kept]
        ids = np.concatenate([encoded.ids for encoded, _ in kept])
        self._files[TOKENS].write(ids.astype(self._dtype).tobytes())
        self._mask.add(np.concatenate(masks))
        self._files[DOCUMENTS].write(documents.tobytes())
        self.documents += len(kept)
        self.tokens += len(ids)
        self.supervised += int(documents["supervised"].sum())


def _content_of(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.with_suffix(".json").read_bytes())
    return found


def _batches(rows: Iterable[Row | Broken]) -> Iterator[list[Row | Broken]]:
    """Few rows where they are long: an encoder's memory goes with the characters that it is given at once."""
    batch: list[Row | Broken] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += _characters(row) if isinstance(row, Row) else 0
        if len(batch) >= _BATCH_ROWS or size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _characters(row: Row) -> int:
    texts = [row.text, row.prompt, row.completion]
    said = sum(len(str(message.get("content") or "")) for message in row.messages or ())
    return said + sum(len(text) for text in texts if text is not None)


def _content(encoded: Encoded) -> int:
    """8 bytes of a hash of the tokens, as little-endian 32-bit numbers whatever the shard's width is."""
    return int.from_bytes(blake2b(encoded.ids.astype("<u4").tobytes(), digest_size=8).digest(), "little")
