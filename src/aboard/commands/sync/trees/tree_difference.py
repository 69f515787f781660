"""What a node lacks of a tree, what it has too many of, and which modes and times differ."""

import stat
from collections.abc import Mapping
from dataclasses import field

from aboard.commands.sync.trees.source_tree import SourceTree
from aboard.lazy_dataclass import dataclass
from aboard.transport.files.tree_sender import TreeEntry

# Larger files are sent one by one: they resume in the middle, and nodes may pass them on.
SMALL_BYTES = 1024 * 1024


@dataclass(kw_only=True)
class TreeDifference:
    """Paths of a tree, each list in the order of the tree.

    `uncertain` are small files with the right size and another time: their hashes decide. `large` are larger files
    that are missing or uncertain. `locked` directories are made writable first; then `removed` are deleted, contents
    before directories.
    """

    folders: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    small: list[str] = field(default_factory=list)
    large: list[str] = field(default_factory=list)
    uncertain: list[str] = field(default_factory=list)
    stamped_files: list[str] = field(default_factory=list)
    stamped_folders: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    locked: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not any(vars(self).values())

    def count_bytes(self, tree: SourceTree) -> int:
        return sum(tree.files[path].size for path in (*self.small, *self.large))


def compare_tree(tree: SourceTree, found: Mapping[str, TreeEntry]) -> TreeDifference:
    """As rsync's quick check: a file with the same size and modification time is the same file."""
    difference = TreeDifference()
    _compare_folders(tree, found, difference)
    difference.links = [path for path, target in tree.links.items() if _get_target(found.get(path)) != target]
    for path, wanted in tree.files.items():
        entry = found.get(path)
        lacking = difference.small if wanted.size <= SMALL_BYTES else difference.large
        if entry is None or not stat.S_ISREG(entry.mode) or entry.size != wanted.size:
            lacking.append(path)
            if entry is not None and wanted.size > SMALL_BYTES and stat.S_ISLNK(entry.mode):
                # A link in its place would be taken for the file that it points to.
                difference.removed.append(path)
        elif entry.mtime_ns != wanted.mtime_ns:
            (difference.uncertain if lacking is difference.small else difference.large).append(path)
        elif entry.mode & 0o777 != wanted.mode:
            difference.stamped_files.append(path)
    return difference


def find_extra(tree: SourceTree, found: Mapping[str, TreeEntry]) -> tuple[list[str], list[str]]:
    """The paths that `--delete` deletes, and those of them that are directories, which may hold more.

    What .gitignore excludes stays. A directory in the place of a file is extra too.
    """
    extra, folders = [], []
    for path, entry in found.items():
        is_directory = stat.S_ISDIR(entry.mode)
        known = path in tree.folders or (not is_directory and (path in tree.files or path in tree.links))
        if not known and not tree.ignore.excludes(path, is_directory=is_directory):
            extra.append(path)
            if is_directory:
                folders.append(path)
    return extra, folders


def list_final_folders(tree: SourceTree, difference: TreeDifference) -> list[str]:
    """The directories whose times our own changes moved, and those that differed, deepest first."""
    touched = _list_parents(difference) | {*difference.folders, *difference.stamped_folders}
    return sorted(touched & tree.folders.keys(), reverse=True)


def list_locked_folders(found: Mapping[str, TreeEntry], difference: TreeDifference) -> list[str]:
    """The directories that change but that not even their owner may write; outer ones first."""
    entries = ((path, found.get(path)) for path in sorted(_list_parents(difference)))
    return [
        path
        for path, entry in entries
        if entry is not None and stat.S_ISDIR(entry.mode) and entry.mode & stat.S_IRWXU != stat.S_IRWXU
    ]


def _list_parents(difference: TreeDifference) -> set[str]:
    changed = (*difference.folders, *difference.links, *difference.removed, *difference.small, *difference.large)
    return {path.rpartition("/")[0] for path in changed}


def _compare_folders(tree: SourceTree, found: Mapping[str, TreeEntry], difference: TreeDifference) -> None:
    for path, wanted in tree.folders.items():
        entry = found.get(path)
        if not path:
            continue
        if entry is None or not stat.S_ISDIR(entry.mode):
            difference.folders.append(path)
        elif entry.mode & 0o777 != wanted.mode or entry.mtime_ns != wanted.mtime_ns:
            difference.stamped_folders.append(path)


def _get_target(entry: TreeEntry | None) -> str | None:
    return entry.target if entry is not None and stat.S_ISLNK(entry.mode) else None
