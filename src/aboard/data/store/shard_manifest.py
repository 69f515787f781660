"""The manifest of a set of token shards: what is in it, what it was made of, and the hash of every file."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Literal

from aboard.core.decoding import CustomDecoder, DecodeError, Matching, MaxLength, Word, decode
from aboard.diagnoses import AboardError
from aboard.diagnoses.trainer import data
from aboard.diagnoses.untrusted import Untrusted, encode_text, escape_text
from aboard.lazy_dataclass import dataclass

FORMAT = "aboard-token-shards"
VERSION = 1
MANIFEST_NAME = "manifest.json"
# So many broken rows are kept word for word; the others are counted.
MAX_BROKEN_ROWS = 100


def parse_file_name(name: object) -> str:
    """A manifest may come from elsewhere: it names files beside itself, and no others."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w+@-][\w.+@-]{0,254}", name):
        raise DecodeError(f"{escape_text(str(name))} is no plain file name")
    return name


FileName = Annotated[str, CustomDecoder(parse_file_name)]
Sha256 = Annotated[str, Matching(r"[0-9a-f]{64}")]
MAX_ITEMS = MaxLength(1 << 24)


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """A file of the set, by its name beside the manifest."""

    name: FileName
    bytes: int
    sha256: Sha256


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One token file with its mask and its index; without a mask every token counts but each document's first."""

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
    """A file that the documents came from; `name` is what it was called then, its content is what counts."""

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
    """Everything about a set but its tokens.

    `encoder` is a hash of tokenizer, template and settings; `made_with` has them one by one, where the writer knew.
    `gate_file` has what the gate must know of the rows, where the writer counted it.
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
    """The manifest of a directory; an error says what is wrong with one that can't be used."""
    path = folder / MANIFEST_NAME
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise make_manifest_error(path, f"it can't be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise make_manifest_error(path, "it is no JSON") from error
    known = isinstance(content, dict) and content.get("format") == FORMAT
    if not known or content.get("version") != VERSION:
        raise make_manifest_error(path, f"it is no manifest of {FORMAT} version {VERSION}")
    try:
        return decode(ShardManifest, content, strict=True)
    except DecodeError as error:
        raise make_manifest_error(path, f"a field is missing or of the wrong kind ({error})") from error


def make_manifest_error(path: Path, why: str) -> AboardError:
    return AboardError(data.MANIFEST, f"{path}: {why}")
