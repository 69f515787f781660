"""A unit of preparation: one chunk as tokens, mask and documents, kept on disk until its shard is complete."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from aboard.core.decoding import decode
from aboard.diagnoses.untrusted import Untrusted, encode_text
from aboard.durable_files import FileEntry, HashedFile, write_atomically
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.quality.data_check import collect_statistics
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.row_statistics import CheckedRow, DataStatistics
from aboard.trainer.data.quality.statistics_json import encode_statistics
from aboard.trainer.data.rows import DataRow, EncodedRow, InvalidRow, Mask
from aboard.trainer.data.store.shard_index import DOCUMENT_DTYPE
from aboard.trainer.data.store.shard_manifest import MAX_BROKEN_ROWS, BrokenRow

# The indexes of a unit's files in its record.
TOKENS, MASK, DOCUMENTS = range(3)
_ENDINGS = (".tokens", ".mask", ".documents")
_TALLY = "tally"

# The encoder's batch size: its results take ten times the memory of the text.
_BATCH_ROWS = 256
_BATCH_CHARACTERS = 1 << 18


class SizedVocabulary(Protocol):
    """The number of tokens: one more than the largest id."""

    @property
    def size(self) -> int: ...


class RowEncoder(Protocol):
    """Encodes rows; `identity` hashes all that affects the result. `tokens.encoder.Encoder` is one."""

    @property
    def identity(self) -> str: ...

    @property
    def vocabulary(self) -> SizedVocabulary: ...

    def __call__(self, rows: list[DataRow]) -> Sequence[EncodedRow | InvalidRow]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitRecord:
    """The result of a unit; written after its files, so that they exist if it does."""

    rows: int
    documents: int
    tokens: int
    supervised: int
    unit: Literal["line", "row"]
    broken: dict[str, int]
    broken_first: tuple[BrokenRow, ...]
    files: tuple[FileEntry, ...]


def write_unit(
    rows: Iterable[DataRow | InvalidRow],
    encoder: RowEncoder,
    *,
    origin: int,
    path: Path,
    on_progress: Callable[[int, int], None],
    settings: EncodingSettings,
) -> UnitRecord:
    """Encodes the rows into PATH.tokens, .mask and .documents; `on_progress` receives rows and tokens as they are done.

    Their statistics for the data check are stored with the record.
    """
    draft = _Draft(path, vocabulary=encoder.vocabulary.size, origin=origin, settings=settings)
    try:
        for batch in _batch_rows(rows):
            before = draft.tokens
            draft.take(batch, encoder)
            on_progress(len(batch), draft.tokens - before)
        record = draft.publish()
    except BaseException:
        draft.drop()
        raise
    content = {**asdict(record), _TALLY: encode_statistics(draft.statistics, origin)}
    write_atomically(path.with_suffix(".json"), json.dumps(content, default=encode_text), sync=False)
    return record


def read_unit(path: Path) -> UnitRecord | None:
    """The record of a finished unit; None if there is no valid one."""
    try:
        return decode(UnitRecord, _load_record(path), strict=True)
    except (OSError, ValueError):
        return None


def read_unit_statistics(path: Path) -> dict[str, Any]:
    """The statistics of a finished unit, as encoded by `aboard.trainer.data.quality.statistics_json`."""
    statistics: dict[str, Any] = _load_record(path)[_TALLY]
    return statistics


def choose_token_bytes(vocabulary: int) -> Literal[2, 4]:
    return 2 if vocabulary <= 1 << 16 else 4


class MaskWriter:
    """Mask bits in token order, the lowest of each byte first; an incomplete byte waits for the next write."""

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

    def __init__(self, path: Path, *, vocabulary: int, origin: int, settings: EncodingSettings) -> None:
        self._files = [HashedFile(path.with_suffix(ending)) for ending in _ENDINGS]
        self._mask = MaskWriter(self._files[MASK])
        self._vocabulary = vocabulary
        self._dtype = np.dtype(f"<u{choose_token_bytes(vocabulary)}")
        self._origin = origin
        self._settings = settings
        self.statistics = DataStatistics()
        self._broken: Counter[str] = Counter()
        self._broken_first: list[BrokenRow] = []
        self._unit: Literal["line", "row"] = "line"
        self.rows = self.documents = self.tokens = self.supervised = 0

    def take(self, batch: Sequence[DataRow | InvalidRow], encoder: RowEncoder) -> None:
        rows = [row for row in batch if isinstance(row, DataRow)]
        encoded = iter(encoder(rows) if rows else ())
        documents: list[tuple[EncodedRow, DataRow]] = []
        items: list[CheckedRow] = []
        for row in batch:
            result = row if isinstance(row, InvalidRow) else self._check_encoded(next(encoded))
            items.append(CheckedRow(row=row, encoded=result if isinstance(row, DataRow) else None))
            if isinstance(result, InvalidRow):
                self._note(result)
            elif isinstance(row, DataRow):
                documents.append((result, row))
        self.statistics += collect_statistics(items, self._settings, prints=False, earlier=self.statistics.sample)
        self.rows += len(batch)
        self._unit = batch[-1].location.unit
        if documents:
            self._write(documents)

    def publish(self) -> UnitRecord:
        self._mask.close()
        # Not synced: damage by a power cut shows in the hash, and the unit is made again.
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

    def _check_encoded(self, encoded: EncodedRow | InvalidRow) -> EncodedRow | InvalidRow:
        if isinstance(encoded, InvalidRow):
            return encoded
        if not len(encoded.ids):
            return InvalidRow(location=encoded.location, code="row-empty", why=Untrusted("it has no tokens"))
        if encoded.ids.max() < self._vocabulary:
            return encoded
        why = f"token {encoded.ids.max()} is not in the tokenizer's vocabulary of {self._vocabulary}"
        return InvalidRow(location=encoded.location, code="token-unknown", why=Untrusted(why))

    def _note(self, invalid: InvalidRow) -> None:
        self._broken[invalid.code] += 1
        if len(self._broken_first) < MAX_BROKEN_ROWS:
            row = BrokenRow(origin=self._origin, line=invalid.location.line, code=invalid.code, why=invalid.why)
            self._broken_first.append(row)

    def _write(self, pairs: Sequence[tuple[EncodedRow, DataRow]]) -> None:
        masks = [encoded.mask.copy() for encoded, _ in pairs]
        for mask in masks:
            mask[:1] = False  # nothing predicts a document's first token
        documents = np.zeros(len(pairs), DOCUMENT_DTYPE)
        documents["length"] = [len(mask) for mask in masks]
        documents["supervised"] = [np.count_nonzero(mask) for mask in masks]
        documents["offset"] = self.tokens + np.cumsum(documents["length"]) - documents["length"]
        documents["whole"] = [row.kind in {"chat", "pair"} for _, row in pairs]
        documents["origin"] = self._origin
        documents["line"] = [row.location.line for _, row in pairs]
        documents["content"] = [_hash_tokens(encoded) for encoded, _ in pairs]
        ids = np.concatenate([encoded.ids for encoded, _ in pairs])
        self._files[TOKENS].write(ids.astype(self._dtype).tobytes())
        self._mask.add(np.concatenate(masks))
        self._files[DOCUMENTS].write(documents.tobytes())
        self.documents += len(pairs)
        self.tokens += len(ids)
        self.supervised += int(documents["supervised"].sum())


def _load_record(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.with_suffix(".json").read_bytes())
    return content


def _batch_rows(rows: Iterable[DataRow | InvalidRow]) -> Iterator[list[DataRow | InvalidRow]]:
    """Fewer rows if they are long: an encoder's memory depends on the characters of a batch."""
    batch: list[DataRow | InvalidRow] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += _count_characters(row) if isinstance(row, DataRow) else 0
        if len(batch) >= _BATCH_ROWS or size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _count_characters(row: DataRow) -> int:
    texts = [row.text, row.prompt, row.completion]
    message_characters = sum(len(str(message.get("content") or "")) for message in row.messages or ())
    return message_characters + sum(len(text) for text in texts if text is not None)


def _hash_tokens(encoded: EncodedRow) -> int:
    """8 bytes of a hash of the tokens, as little-endian 32-bit numbers for any shard width."""
    return int.from_bytes(blake2b(encoded.ids.astype("<u4").tobytes(), digest_size=8).digest(), "little")
