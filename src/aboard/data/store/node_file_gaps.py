"""Compares by hash whether every node has the same files."""

from collections.abc import Iterable, Mapping

from aboard.durable_files import FileEntry
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class NodeFileGap:
    """The files that a node lacks or has with other content."""

    node: str
    missing: tuple[FileEntry, ...] = ()
    differing: tuple[FileEntry, ...] = ()


def find_file_gaps(wanted: Iterable[FileEntry], found: Mapping[str, Mapping[str, FileEntry]]) -> list[NodeFileGap]:
    """The nodes with missing or different files; an empty result proves that all nodes have the same files."""
    files = tuple(wanted)
    every = (_compare_node_files(node, files, has) for node, has in found.items())
    return [gap for gap in every if gap.missing or gap.differing]


def _compare_node_files(node: str, files: tuple[FileEntry, ...], has: Mapping[str, FileEntry]) -> NodeFileGap:
    return NodeFileGap(
        node=node,
        missing=tuple(file for file in files if file.name not in has),
        differing=tuple(file for file in files if file.name in has and has[file.name] != file),
    )
