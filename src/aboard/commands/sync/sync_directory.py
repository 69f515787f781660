"""A directory of the head that every node must have, by the names, sizes and hashes of its files."""

from collections.abc import Mapping
from pathlib import Path

from aboard.durable_files import FileEntry
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class SyncDirectory:
    """`to` is the directory on the nodes; `files` are its relevant files, plain names in transfer order.

    With `peers`, nodes pass large files on to each other, authenticated but not encrypted; code never goes that way.
    `prepared` files can be made again.
    """

    folder: Path
    files: tuple[FileEntry, ...]
    to: str
    peers: bool = False
    prepared: bool = False

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def find_gaps(self, found: Mapping[str, FileEntry]) -> list[FileEntry]:
        """The files that a node lacks, then those that it has with other content; none proves that it has them all."""
        gaps = [file for file in self.files if found.get(file.name) != file]
        return sorted(gaps, key=lambda file: file.name in found)
