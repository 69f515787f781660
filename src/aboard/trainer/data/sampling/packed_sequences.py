"""Packed sequences on disk: each consists of document segments, and any of them is read in O(1) by pread."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np

from aboard.core.decoding import Word, decode, parse_json
from aboard.core.plan.training_settings import DataPart
from aboard.durable_files import FileEntry
from aboard.file_integrity import check_file_size, make_damage_error
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.rows import Ids, Mask
from aboard.trainer.data.sampling.document_segments import SEGMENT_DTYPE, OverflowPolicy, TruncationLosses
from aboard.trainer.data.store.random_access_file import RandomAccessFile
from aboard.trainer.data.store.shard_manifest import MANIFEST_NAME, make_manifest_error, read_manifest
from aboard.trainer.data.store.token_shards import TokenShards

Packing = Literal["packed", "padded"]
FORMAT = "aboard-bins"
VERSION = 1

# A sequence: its first segment, the number of segments, of tokens, and of supervised tokens.
SEQUENCE_DTYPE = np.dtype([("first", "<u8"), ("segments", "<u4"), ("tokens", "<u4"), ("supervised", "<u4")])


@dataclass(frozen=True, kw_only=True)
class PackingManifest:
    """How the sequences were packed, from which shards, and what the length limit removed."""

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
        """The share of tokens in the sequences, from 0 to 1; the rest is padding."""
        return self.tokens / max(1, self.bins * self.max_length)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedSequence:
    """The tokens of one sequence; `lengths` are those of its segments, which must not attend to each other.

    `mask` is True for the `supervised` tokens in the loss. `documents` are the document numbers of the segments.
    """

    ids: Ids
    mask: Mask
    lengths: tuple[int, ...]
    documents: tuple[int, ...]
    supervised: int


class PackedSequences:
    """The packed sequences of a directory, over the shards that they were made from."""

    def __init__(self, folder: Path, shards: TokenShards) -> None:
        self.folder = folder
        self.shards = shards
        self.manifest = read_packing_manifest(folder)
        if self.manifest.shards != shards.identity:
            raise make_damage_error(folder, "it was made from different shards")
        for file in self.manifest.files:
            check_file_size(folder, file)
        self._bins = RandomAccessFile(folder / self.manifest.bin_file.name)
        self._segments = RandomAccessFile(folder / self.manifest.segment_file.name)

    def __len__(self) -> int:
        return self.manifest.bins

    def counts(self, number: int) -> tuple[int, int]:
        """The tokens and supervised tokens of a sequence, without reading it."""
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

    def _entry(self, number: int) -> np.void:
        if not 0 <= number < len(self):
            raise IndexError(f"sequence {number} is out of range: there are {len(self)}")
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
        content: dict[str, Any] = parse_json(path.read_bytes())
        if (content["format"], content["version"]) != (FORMAT, VERSION):
            raise make_manifest_error(path, f"it is not a manifest of {FORMAT} version {VERSION}")
        return decode(PackingManifest, content, strict=True)
    except OSError as error:
        raise make_manifest_error(path, f"it can't be read ({error.strerror})") from error
    except (ValueError, TypeError, KeyError) as error:
        raise make_manifest_error(path, f"a field is missing or has the wrong type ({error})") from error


def compute_data_identity(data: Iterable[DataPart]) -> str:
    """A hash of the content, packing and mix of prepared data, independent of its location."""
    content = [
        [
            [file.sha256 for file in read_manifest(Path(part.shards)).files],
            [file.sha256 for file in read_packing_manifest(Path(part.bins)).files],
            part.weight,
            # A mix draws from each source in an order that depends on its name.
            *([] if part.weight is None else [part.name]),
        ]
        for part in data
    ]
    return sha256(json.dumps(content).encode()).hexdigest()
