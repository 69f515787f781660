"""A parcel: a directory of the head's that every node is to have, by the names, sizes and hashes of its files."""

import json
import os
from pathlib import Path

from aboard.core.decoding import DecodeError, decode
from aboard.data.store.fingerprints import Fingerprints
from aboard.data.store.manifest import FORMAT, NAME, FileEntry, read_manifest, unusable
from aboard.diagnoses import AboardError, data, spread
from aboard.lazy import dataclass

# How manifests of ours begin to say what they are: shards, bins.
_OURS = "aboard-"


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """`to` is the directory on the nodes; `files` are what counts of it, plain names in the order of sending."""

    folder: Path
    files: tuple[FileEntry, ...]
    to: str

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def parcel(folder: Path, *, hashes: Path, to: str | None = None) -> Parcel:
    """A set of shards or bins as its manifest has it, or every file of another directory, such as a model's.

    Hidden files and folders in it are left out; links are followed. What must be hashed is read once, and `hashes`
    keeps that. The manifest comes last: a set that has none is no set yet.
    """
    listed = _listed(folder)
    names = _names(folder) if listed is None else [NAME]
    contents = Fingerprints(hashes).of([folder / name for name in names], threads=len(os.sched_getaffinity(0)))
    found = [
        FileEntry(name=name, bytes=content.bytes, sha256=content.sha256)
        for name, content in zip(names, contents, strict=True)
    ]
    return Parcel(folder=folder, files=(*(listed or ()), *found), to=to or str(folder.absolute()))


def _listed(folder: Path) -> tuple[FileEntry, ...] | None:
    """What a manifest of ours says; None where there is none."""
    try:
        content = json.loads((folder / NAME).read_bytes())
    except (OSError, ValueError):
        return None
    kind = content.get("format") if isinstance(content, dict) else None
    if kind == FORMAT:
        return read_manifest(folder).files
    if not isinstance(kind, str) or not kind.startswith(_OURS):
        return None
    try:
        return tuple(decode(FileEntry, value, strict=True) for key, value in content.items() if key.endswith("_file"))
    except DecodeError as error:
        raise unusable(folder / NAME, f"a field is missing or of the wrong kind ({error})") from error


def _names(folder: Path) -> list[str]:
    try:
        found = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        seen = f"{folder} can't be read: {error.strerror}"
        raise AboardError(data.UNREADABLE, seen, "folder", path=folder) from error
    if not found:
        raise AboardError(spread.EMPTY, f"{folder} has no files to be spread", folder=folder)
    return found
