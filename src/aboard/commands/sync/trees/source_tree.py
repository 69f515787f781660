"""A tree of files on the head: what of it is sent, and what .gitignore excludes."""

import errno
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import NamedTuple

from aboard.agent.transfer.file_names import OWN_PREFIX
from aboard.core.cluster.file_sync import LeftOutPath
from aboard.core.text.byte_sizes import format_size
from aboard.core.text.gitignore import IgnoreRules
from aboard.diagnoses import AboardError
from aboard.diagnoses.files import local_files
from aboard.foreign_files import read_foreign_file, refuse_outside_link
from aboard.lazy_dataclass import dataclass

GITIGNORE = ".gitignore"
# Compiling more patterns would take seconds.
_MOST_RULES = 64 * 1024
_PYTHON_ENVIRONMENT = "pyvenv.cfg"
# Left out without a word: Python writes it again wherever code runs.
_COMPILED = ("__pycache__", ".pyc")
# Directories that .gitignore names may hold millions of files: beyond this, they are no longer counted.
_MOST_COUNTED = 200_000


class FileStatus(NamedTuple):
    """What a quick comparison of two files looks at."""

    size: int
    mode: int
    mtime_ns: int


@dataclass(frozen=True, kw_only=True)
class SourceTree:
    """Relative paths below `root`, sorted by directory; `to` is the same directory on the nodes.

    `is_data` marks data and models, which nodes may pass on to each other. `is_whole` is False if only some names of
    the root were asked for: then nothing else there is looked at. `is_named` is True if the user typed the path:
    then files may be deleted on nodes, too, where no sync made the directory. `left_out` is what .gitignore excludes,
    as far as it was counted.
    """

    root: Path
    to: str
    folders: Mapping[str, FileStatus]
    files: Mapping[str, FileStatus]
    links: Mapping[str, str]
    is_data: bool
    is_whole: bool = True
    is_named: bool = False
    special: int = 0
    left_out: tuple[LeftOutPath, ...] = ()
    ignore: "IgnoreStack" = field(default_factory=lambda: IgnoreStack(""))

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files.values())


class IgnoreStack:
    """The rules of all .gitignore files that concern a tree, and paths that are never sent from it.

    `prefix` leads from the repository's top to the tree's root: files above the root have rules too.
    """

    def __init__(self, prefix: str, *, skipped: Collection[str] = ()) -> None:
        self._prefix = prefix
        self._skipped = frozenset(skipped)
        self._rules: dict[str, IgnoreRules] = {}

    def add_rules(self, folder: str, text: str) -> None:
        """Adds the file of a directory, named from the repository's top."""
        rules = IgnoreRules(text)
        if rules:
            self._rules[folder] = rules

    def add_folder(self, folder: str, text: str) -> None:
        """Adds the file of a directory of the tree."""
        self.add_rules(_join_paths(self._prefix, folder), text)

    def excludes(self, path: str, *, is_directory: bool) -> bool:
        """Whether a path of the tree is excluded; its directory is not."""
        return self.never_sends(path) or self.ignores(path, is_directory=is_directory)

    def never_sends(self, path: str) -> bool:
        return path in self._skipped or path.rpartition("/")[2] == ".git"

    def ignores(self, path: str, *, is_directory: bool) -> bool:
        """Whether the rules of .gitignore name a path of the tree."""
        name = path.rpartition("/")[2]
        return bool(self._rules) and self._match(_join_paths(self._prefix, path), name, is_directory=is_directory)

    def excludes_root(self) -> bool:
        """Whether the rules exclude the root itself, or a directory on the way to it."""
        parts = self._prefix.split("/") if self._prefix else []
        return any(self._match("/".join(parts[: end + 1]), part, is_directory=True) for end, part in enumerate(parts))

    def _match(self, full: str, name: str, *, is_directory: bool) -> bool:
        folder = full
        while folder:
            folder = folder.rpartition("/")[0]
            rules = self._rules.get(folder)
            if rules is not None:
                ignored = rules.match(full[len(folder) + 1 :] if folder else full, name, is_directory=is_directory)
                if ignored is not None:
                    return ignored
        return False


def scan_code(
    root: Path, to: str, *, skipped: Collection[Path] = (), explicit: bool = False, ignored: bool = False
) -> SourceTree:
    """The files of a directory that .gitignore doesn't exclude, or with `ignored` all of them; links stay links.

    Rules above the root don't apply if they exclude an `explicit` root, or everything in it. Python environments are
    left out: their files are bound to one machine.
    """
    below = [path.relative_to(root).as_posix() for path in skipped if path.is_relative_to(root) and path != root]
    ignore = _read_outer_rules(root, below)
    if explicit and _excludes_everything(root, ignore):
        ignore = IgnoreStack("", skipped=below)
    return _Scan(root, ignore, reads_rules=True, sends_ignored=ignored).build(to, is_data=False)


def scan_data(root: Path, to: str, *, others: Collection[Path] = ()) -> SourceTree:
    """Every file of a directory; a link to a file is sent as that file, as models in a cache need it.

    The file must be in the directory, or in one of the `others` that are sent.
    """
    return _Scan(root, IgnoreStack(""), reads_rules=False, others=others).build(to, is_data=True)


def scan_file(path: Path, to: str, *, is_data: bool) -> SourceTree:
    """A single file; `to` is its directory on the nodes."""
    files = {path.name: _read_status(path.stat())}
    return SourceTree(root=path.parent, to=to, folders={}, files=files, links={}, is_data=is_data, is_whole=False)


class _Scan:
    def __init__(
        self,
        root: Path,
        ignore: IgnoreStack,
        *,
        reads_rules: bool,
        sends_ignored: bool = False,
        others: Collection[Path] = (),
    ) -> None:
        self._root = root
        self._others = others
        self._ignore = ignore
        self._reads_rules = reads_rules
        self._sends_ignored = sends_ignored
        self._left_out: list[LeftOutPath] = []
        self._counted = 0
        self._folders: dict[str, FileStatus] = {}
        self._files: dict[str, FileStatus] = {}
        self._links: dict[str, str] = {}
        self._special = 0

    def build(self, to: str, *, is_data: bool) -> SourceTree:
        self._folders[""] = _read_status(self._root.stat())
        pending = [""]
        while pending:
            # Subdirectories in order, each before its siblings' files: nodes keep few directories open.
            pending += reversed(list(self._scan_folder(pending.pop())))
        return SourceTree(
            root=self._root,
            to=to,
            folders=self._folders,
            files=self._files,
            links=self._links,
            is_data=is_data,
            special=self._special,
            left_out=tuple(self._left_out),
            ignore=self._ignore,
        )

    def _scan_folder(self, folder: str) -> Iterator[str]:
        """Adds the files of one directory, and yields its subdirectories."""
        path = self._root / folder
        try:
            with os.scandir(path) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            seen = f"{path} can't be read: {error.strerror}"
            raise AboardError(local_files.UNREADABLE, seen, "folder", path=path) from error
        if self._reads_rules:
            names = {entry.name for entry in entries}
            if GITIGNORE in names:
                self._ignore.add_folder(folder, _read_rules(path / GITIGNORE))
        for entry in entries:
            relative = f"{folder}/{entry.name}" if folder else entry.name
            if entry.name.startswith(OWN_PREFIX):
                continue
            is_directory = entry.is_dir(follow_symlinks=False)
            if self._excludes(entry, relative, is_directory=is_directory):
                continue
            if is_directory:
                self._folders[relative] = _read_status(entry.stat(follow_symlinks=False))
                yield relative
            else:
                self._add(entry, relative)

    def _excludes(self, entry: "os.DirEntry[str]", path: str, *, is_directory: bool) -> bool:
        if self._ignore.never_sends(path):
            return True
        if self._reads_rules and is_directory and Path(entry.path, _PYTHON_ENVIRONMENT).exists():
            return True
        if not self._ignore.ignores(path, is_directory=is_directory):
            return False
        # The deletion of extra files still respects the rules: a node may have written what they name.
        if self._sends_ignored:
            return entry.name.endswith(_COMPILED)
        self._count_left_out(entry, path, is_directory=is_directory)
        return True

    def _count_left_out(self, entry: "os.DirEntry[str]", path: str, *, is_directory: bool) -> None:
        if entry.name.endswith(_COMPILED) or self._counted >= _MOST_COUNTED:
            return
        sizes = list(self._list_sizes(entry.path)) if is_directory else [entry.stat(follow_symlinks=False).st_size]
        self._counted += len(sizes)
        if sizes:
            self._left_out.append(LeftOutPath(path, len(sizes), sum(sizes), is_directory))

    def _list_sizes(self, folder: str) -> Iterator[int]:
        """The sizes of the files below; what can't be read is not counted, since it isn't sent either."""
        count = self._counted
        for path, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if name not in ("__pycache__", ".git")]
            for name in names:
                count += 1
                if count > _MOST_COUNTED:
                    return
                with suppress(OSError):
                    yield os.lstat(f"{path}/{name}").st_size

    def _add(self, entry: "os.DirEntry[str]", path: str) -> None:
        if entry.is_symlink() and (self._reads_rules or not entry.is_file()):
            self._links[path] = os.readlink(entry.path)  # noqa: PTH115 - a path would normalize the target
        elif entry.is_file():
            if entry.is_symlink():
                refuse_outside_link(Path(entry.path), (self._root, *self._others))
            self._files[path] = _read_status(entry.stat())
        else:
            self._special += 1


def _read_status(status: os.stat_result) -> FileStatus:
    return FileStatus(status.st_size, stat.S_IMODE(status.st_mode) & 0o777, status.st_mtime_ns)


def _read_outer_rules(root: Path, skipped: Collection[str]) -> IgnoreStack:
    """The rules of the repository that the directory belongs to, from its top down to the directory above the root."""
    top = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
    ignore = IgnoreStack(root.relative_to(top).as_posix() if root != top else "", skipped=skipped)
    folders = [folder for folder in root.parents if folder.is_relative_to(top)]
    for folder in folders:
        relative = folder.relative_to(top).as_posix()
        ignore.add_rules("" if relative == "." else relative, _read_rules(folder / GITIGNORE))
    return ignore


def _excludes_everything(root: Path, ignore: IgnoreStack) -> bool:
    """Whether rules above the root exclude the root, a directory on the way to it, or all that is in it."""
    names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in os.scandir(root)]
    if names and all(ignore.excludes(name, is_directory=is_directory) for name, is_directory in names):
        return True
    return ignore.excludes_root()


def _read_rules(path: Path) -> str:
    """The text of a .gitignore file; git doesn't follow links there either."""
    try:
        text = b"" if path.is_symlink() else read_foreign_file(path, _MOST_RULES)
    except OSError as error:
        if error.errno != errno.EFBIG:
            return ""
        seen = f"{path} has more than {format_size(_MOST_RULES)}"
        raise AboardError(local_files.UNREADABLE, seen, "file", path=path) from None
    return text.decode("utf-8", "surrogateescape")


def _join_paths(prefix: str, path: str) -> str:
    return f"{prefix}/{path}" if prefix and path else prefix or path
