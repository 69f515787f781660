"""Bins: what a rank trains on at once, each made of segments of documents; read by pread, O(1) for any bin."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from aboard.core.decoding import Word, decode
from aboard.core.plan.training_settings import DataPart
from aboard.data.rows import Ids, Mask
from aboard.data.sampling.document_segments import SEGMENT_DTYPE, OverflowPolicy, TruncationLosses
from aboard.data.store.file_integrity import check_file_hash, check_file_size, make_damage_error
from aboard.data.store.random_access_file import RandomAccessFile
from aboard.data.store.shard_manifest import MANIFEST_NAME, FileEntry, make_manifest_error, read_manifest
from aboard.data.store.token_shards import TokenShards
from aboard.lazy_dataclass import dataclass

Packing = Literal["packed", "padded"]
FORMAT = "aboard-bins"
VERSION = 1

# A bin: its first segment, how many there are, its tokens, those of them that carry loss.
SEQUENCE_DTYPE = np.dtype([("first", "<u8"), ("segments", "<u4"), ("tokens", "<u4"), ("supervised", "<u4")])


@dataclass(frozen=True, kw_only=True)
class PackingManifest:
    """How the bins were made, from which shards, and what the limit did to documents."""

    max_length: int
    packing: Packing
    cut: OverflowPolicy
    shards: Word
    bins: int
    segments: int
    tokens: int
    supervised: int
    losses: TruncationLosses
    bin_file: FileEntry
    segment_file: FileEntry

    @property
    def files(self) -> tuple[FileEntry, ...]:
        return (self.bin_file, self.segment_file)

    @property
    def full(self) -> float:
        """How much of the bins is tokens, from 0 to 1; the rest is padding."""
        return self.tokens / max(1, self.bins * self.max_length)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedSequence:
    """Its tokens in a row; `lengths` are those of its segments, which must not see each other.

    `mask` is True where the loss is taken, `supervised` times. `documents` are the numbers of the segments' documents,
    `positions` restart in each segment.
    """

    ids: Ids
    mask: Mask
    lengths: tuple[int, ...]
    documents: tuple[int, ...]
    supervised: int

    @property
    def positions(self) -> NDArray[np.int64]:
        lengths = np.asarray(self.lengths, np.int64)
        starts = np.cumsum(lengths) - lengths
        return np.arange(lengths.sum(), dtype=np.int64) - np.repeat(starts, lengths)


class PackedSequences:
    """The bins of a directory, over the shards that they were made from."""

    def __init__(self, folder: Path, shards: TokenShards) -> None:
        self.folder = folder
        self.shards = shards
        self.manifest = read_packing_manifest(folder)
        if self.manifest.shards != shards.identity:
            raise make_damage_error(folder, "it was made from other shards than these")
        for file in self.manifest.files:
            check_file_size(folder, file)
        self._bins = RandomAccessFile(folder / self.manifest.bin_file.name)
        self._segments = RandomAccessFile(folder / self.manifest.segment_file.name)

    def __len__(self) -> int:
        return self.manifest.bins

    def supervised(self, number: int) -> int:
        """How many tokens of the bin carry loss, without reading them: what a step is divided by."""
        return int(self._entry(number)["supervised"])

    def counts(self, number: int) -> tuple[int, int]:
        """The tokens of the bin and those of them that carry loss, without reading them."""
        entry = self._entry(number)
        return int(entry["tokens"]), int(entry["supervised"])

    def bin(self, number: int) -> PackedSequence:
        entry = self._entry(number)
        width = SEGMENT_DTYPE.itemsize
        data = self._segments.at(int(entry["first"]) * width, int(entry["segments"]) * width)
        segments = np.frombuffer(data, SEGMENT_DTYPE)
        spans = [self.shards.span(int(segment["at"]), int(segment["length"])) for segment in segments]
        return PackedSequence(
            ids=np.concatenate([ids for ids, _ in spans]),
            mask=np.concatenate([mask for _, mask in spans]),
            lengths=tuple(segments["length"].tolist()),
            documents=tuple(segments["document"].tolist()),
            supervised=int(entry["supervised"]),
        )

    def verify(self) -> None:
        """Reads the files of the bins; those of the shards have their own `verify`."""
        for file in self.manifest.files:
            check_file_hash(self.folder, file)

    def _entry(self, number: int) -> np.void:
        if not 0 <= number < len(self):
            raise IndexError(f"there is no bin {number} among {len(self)}")
        entry: np.void = np.frombuffer(
            self._bins.at(number * SEQUENCE_DTYPE.itemsize, SEQUENCE_DTYPE.itemsize), SEQUENCE_DTYPE
        )[0]
        return entry


def format_packing_manifest(manifest: PackingManifest) -> str:
    """The text of manifest.json; equal manifests give equal bytes."""
    return json.dumps({"format": FORMAT, "version": VERSION, **asdict(manifest)}, indent=1) + "\n"


def read_packing_manifest(folder: Path) -> PackingManifest:
    path = folder / MANIFEST_NAME
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        if (content["format"], content["version"]) != (FORMAT, VERSION):
            raise make_manifest_error(path, f"it is no manifest of {FORMAT} version {VERSION}")
        return decode(PackingManifest, content, strict=True)
    except OSError as error:
        raise make_manifest_error(path, f"it can't be read ({error.strerror})") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise make_manifest_error(path, f"a field is missing or of the wrong kind ({error})") from error


def compute_data_identity(data: Iterable[DataPart]) -> str:
    """A hash of prepared data's content, packing and mix; where it lies doesn't count."""
    content = [
        [
            [file.sha256 for file in read_manifest(Path(part.shards)).files],
            [file.sha256 for file in read_packing_manifest(Path(part.bins)).files],
            part.weight,
            # A mix draws from each source in an order that follows from its name.
            *([] if part.weight is None else [part.name]),
        ]
        for part in data
    ]
    return sha256(json.dumps(content).encode()).hexdigest()
