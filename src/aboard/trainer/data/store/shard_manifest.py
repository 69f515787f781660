"""The manifest of a set of token shards: its content, its origins, and the hash of every file."""

import json
from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Literal

from aboard.core.decoding import DecodeError, MaxLength, Word, decode, parse_json
from aboard.diagnoses import AboardError, TrainerError
from aboard.diagnoses.untrusted import Untrusted, encode_text
from aboard.durable_files import FileEntry, Sha256
from aboard.lazy_dataclass import dataclass
from aboard.trainer.diagnoses import data

FORMAT = "aboard-token-shards"
VERSION = 1
MANIFEST_NAME = "manifest.json"
# Invalid rows that are kept in full; the others are only counted.
MAX_BROKEN_ROWS = 100


MAX_ITEMS = MaxLength(1 << 24)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One token file with its mask and index; without a mask, every token but each document's first is supervised."""

    documents: int
    tokens: int
    supervised: int
    token_file: FileEntry
    index_file: FileEntry
    mask_file: FileEntry | None = None

    @property
    def files(self) -> tuple[FileEntry, ...]:
        mask = () if self.mask_file is None else (self.mask_file,)
        return (self.token_file, *mask, self.index_file)


@dataclass(frozen=True, kw_only=True, slots=True)
class OriginFile:
    """A file that documents came from; `name` is its name at that time, its content is what counts."""

    name: Annotated[Untrusted, MaxLength(4096)]
    bytes: int
    sha256: Sha256
    unit: Literal["line", "row"] = "line"


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenRow:
    """A row that gave no document."""

    origin: int
    line: int
    code: Word
    why: Untrusted


@dataclass(frozen=True, kw_only=True)
class ShardManifest:
    """Everything about a set except its tokens.

    `encoder` is a hash of tokenizer, template and settings; `made_with` lists them one by one, if the writer knew them.
    `gate_file` has the row statistics for the data check, if the writer counted them.
    """

    token_bytes: Literal[2, 4]
    vocabulary: int
    encoder: Word
    shards: Annotated[tuple[Shard, ...], MAX_ITEMS]
    made_with: Mapping[str, str] = field(default_factory=dict)
    origins: Annotated[tuple[OriginFile, ...], MAX_ITEMS] = ()
    broken: Mapping[str, int] = field(default_factory=dict)
    broken_first: tuple[BrokenRow, ...] = ()
    gate_file: FileEntry | None = None

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    @property
    def supervised(self) -> int:
        return sum(shard.supervised for shard in self.shards)

    @property
    def files(self) -> tuple[FileEntry, ...]:
        gate = () if self.gate_file is None else (self.gate_file,)
        return (*(file for shard in self.shards for file in shard.files), *gate)


def format_manifest(manifest: ShardManifest) -> str:
    """The text of manifest.json; equal manifests give equal bytes."""
    totals = {"documents": manifest.documents, "tokens": manifest.tokens, "supervised": manifest.supervised}
    content = {"format": FORMAT, "version": VERSION, **totals, **asdict(manifest)}
    return json.dumps(content, indent=1, ensure_ascii=False, default=encode_text) + "\n"


def read_manifest(folder: Path) -> ShardManifest:
    """The manifest of a directory; the error for an unusable one says what is wrong."""
    path = folder / MANIFEST_NAME
    try:
        content = parse_json(path.read_bytes())
    except OSError as error:
        raise make_manifest_error(path, f"it can't be read ({error.strerror})") from error
    except ValueError as error:
        raise make_manifest_error(path, "it is not JSON") from error
    known = isinstance(content, dict) and content.get("format") == FORMAT
    if not known or content.get("version") != VERSION:
        raise make_manifest_error(path, f"it is not a manifest of {FORMAT} version {VERSION}")
    try:
        return decode(ShardManifest, content, strict=True)
    except DecodeError as error:
        raise make_manifest_error(path, f"a field is missing or has the wrong type ({error})") from error


def make_manifest_error(path: Path, why: str) -> AboardError:
    return TrainerError(data.MANIFEST, f"{path}: {why}")
