"""Whether every node has the same shards, by hash, and what must be copied where until it does."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aboard.data.durable import sha256_of
from aboard.data.manifest import FileEntry

# What a node has, by name; None when it didn't say.
Found = Mapping[str, FileEntry] | None


@dataclass(frozen=True, kw_only=True)
class Gap:
    """What keeps a node from having the set; `unknown` when it didn't say what it has, which proves nothing."""

    node: str
    missing: tuple[FileEntry, ...] = ()
    differing: tuple[FileEntry, ...] = ()
    unknown: bool = False

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in (*self.missing, *self.differing))


@dataclass(frozen=True, kw_only=True)
class Copy:
    """One file that a node needs, and the nodes that have it right; nobody has it when there are none."""

    node: str
    file: FileEntry
    owners: tuple[str, ...]


def survey(folder: Path) -> dict[str, FileEntry]:
    """The files of a directory with their hashes, read from disk; none when there is no directory."""
    if not folder.is_dir():
        return {}
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    return {path.name: FileEntry(name=path.name, bytes=path.stat().st_size, sha256=sha256_of(path)) for path in paths}


def gaps(wanted: Iterable[FileEntry], found: Mapping[str, Found]) -> list[Gap]:
    """The nodes that lack something; an empty list is the proof that all have the same."""
    files = tuple(wanted)
    every = (_gap(node, files, has) for node, has in found.items())
    return [gap for gap in every if gap.unknown or gap.missing or gap.differing]


def copies(wanted: Iterable[FileEntry], found: Mapping[str, Found]) -> list[Copy]:
    """What is to be copied, largest first; nodes that didn't say what they have get everything."""
    files = tuple(wanted)
    owners = {
        file: tuple(node for node, has in found.items() if has is not None and has.get(file.name) == file)
        for file in files
    }
    needed = [
        Copy(node=gap.node, file=file, owners=owners[file])
        for gap in gaps(files, found)
        for file in (files if gap.unknown else (*gap.missing, *gap.differing))
    ]
    return sorted(needed, key=lambda copy: (-copy.file.bytes, copy.file.name, copy.node))


def _gap(node: str, files: tuple[FileEntry, ...], has: Found) -> Gap:
    if has is None:
        return Gap(node=node, unknown=True)
    return Gap(
        node=node,
        missing=tuple(file for file in files if file.name not in has),
        differing=tuple(file for file in files if file.name in has and has[file.name] != file),
    )
