"""Prepared data or a model, as the files that every node must have."""

import os
from pathlib import Path

from aboard.commands.sync.sync_directory import SyncDirectory
from aboard.content_hash_cache import ContentHashCache
from aboard.core.decoding import DecodeError, decode, parse_json
from aboard.diagnoses import AboardError
from aboard.diagnoses.files import file_sync, local_files
from aboard.durable_files import FileEntry
from aboard.foreign_files import refuse_outside_link
from aboard.trainer.data.store.shard_manifest import FORMAT, MANIFEST_NAME, make_manifest_error, read_manifest

# Prefixes of the format names in our manifests: shards and packed sequences.
_FORMAT_PREFIX = "aboard-"


def build_sync_directory(folder: Path, *, hashes: Path, to: str | None = None) -> SyncDirectory:
    """A set of shards or packed sequences by its manifest, or every file of another directory, such as a model's.

    Hidden files and subdirectories are left out; links inside of the directory are followed. Files without a known hash
    are read once and cached in `hashes`. The manifest is sent last: a set without one is incomplete.
    """
    entries = _read_manifest_files(folder)
    names = _list_file_names(folder) if entries is None else [MANIFEST_NAME]
    for name in (*names, *(entry.name for entry in entries or ())):
        if (folder / name).is_symlink():
            refuse_outside_link(folder / name, [folder])
    contents = ContentHashCache(hashes).of([folder / name for name in names], threads=len(os.sched_getaffinity(0)))
    hashed = [
        FileEntry(name=name, bytes=content.bytes, sha256=content.sha256)
        for name, content in zip(names, contents, strict=True)
    ]
    return SyncDirectory(
        folder=folder,
        files=(*(entries or ()), *hashed),
        to=to or str(folder.absolute()),
        prepared=entries is not None,
    )


def _read_manifest_files(folder: Path) -> tuple[FileEntry, ...] | None:
    """The files of our manifest; None if there is none."""
    try:
        content = parse_json((folder / MANIFEST_NAME).read_bytes())
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
            folder / MANIFEST_NAME, f"a field is missing or has the wrong type ({error})"
        ) from error


def _list_file_names(folder: Path) -> list[str]:
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        seen = f"{folder} can't be read: {error.strerror}"
        raise AboardError(local_files.UNREADABLE, seen, "folder", path=folder) from error
    if not names:
        raise AboardError(file_sync.EMPTY, f"{folder} has no files to copy", folder=folder)
    return names
