"""A parcel: a directory of the head's that every node is to have, by the names, sizes and hashes of its files."""

import json
import os
from pathlib import Path

from aboard.core.decoding import DecodeError, decode
from aboard.data.store.content_hash_cache import ContentHashCache
from aboard.data.store.shard_manifest import FORMAT, MANIFEST_NAME, FileEntry, make_manifest_error, read_manifest
from aboard.diagnoses import AboardError
from aboard.diagnoses.trainer import data, file_sync
from aboard.lazy_dataclass import dataclass

# How manifests of ours begin to say what they are: shards, bins.
_FORMAT_PREFIX = "aboard-"


@dataclass(frozen=True, kw_only=True)
class SyncDirectory:
    """`to` is the directory on the nodes; `files` are what counts of it, plain names in the order of sending."""

    folder: Path
    files: tuple[FileEntry, ...]
    to: str

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def build_sync_directory(folder: Path, *, hashes: Path, to: str | None = None) -> SyncDirectory:
    """A set of shards or bins as its manifest has it, or every file of another directory, such as a model's.

    Hidden files and folders in it are left out; links are followed. What must be hashed is read once, and `hashes`
    keeps that. The manifest comes last: a set that has none is no set yet.
    """
    entries = _read_manifest_files(folder)
    names = _list_file_names(folder) if entries is None else [MANIFEST_NAME]
    contents = ContentHashCache(hashes).of([folder / name for name in names], threads=len(os.sched_getaffinity(0)))
    hashed = [
        FileEntry(name=name, bytes=content.bytes, sha256=content.sha256)
        for name, content in zip(names, contents, strict=True)
    ]
    return SyncDirectory(folder=folder, files=(*(entries or ()), *hashed), to=to or str(folder.absolute()))


def _read_manifest_files(folder: Path) -> tuple[FileEntry, ...] | None:
    """What a manifest of ours says; None where there is none."""
    try:
        content = json.loads((folder / MANIFEST_NAME).read_bytes())
    except (OSError, ValueError):
        return None
    kind = content.get("format") if isinstance(content, dict) else None
    if kind == FORMAT:
        return read_manifest(folder).files
    if not isinstance(kind, str) or not kind.startswith(_FORMAT_PREFIX):
        return None
    try:
        return tuple(decode(FileEntry, value, strict=True) for key, value in content.items() if key.endswith("_file"))
    except DecodeError as error:
        raise make_manifest_error(
            folder / MANIFEST_NAME, f"a field is missing or of the wrong kind ({error})"
        ) from error


def _list_file_names(folder: Path) -> list[str]:
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        seen = f"{folder} can't be read: {error.strerror}"
        raise AboardError(data.UNREADABLE, seen, "folder", path=folder) from error
    if not names:
        raise AboardError(file_sync.EMPTY, f"{folder} has no files to be spread", folder=folder)
    return names
