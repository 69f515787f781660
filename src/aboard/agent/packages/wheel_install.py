"""Installs one wheel into a virtual environment, or removes a package from it.

A package whose installation was interrupted is recognised by its pending metadata, and the next one completes it. Files
are replaced by renaming, so that a process that has the old one mapped keeps it.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import io
import os
import shutil
import zipfile
from collections.abc import Iterable
from typing import IO

from aboard.agent.packages.installed_packages import (
    PENDING,
    RECORD,
    find_metadata,
    list_names,
    list_recorded_paths,
    parse_metadata_name,
)

SHEBANG = b"#!python"
NEW = PENDING * 2
DRAFT = ".aboard-draft"
_BLOCK = 1024 * 1024


class BadWheel(ValueError):
    """A wheel that does not contain exactly one package, or has a name that leads out of the environment."""


class WheelLayout:
    """Where the files of a wheel go in an environment; `site` is relative to its prefix."""

    def __init__(self, archive: zipfile.ZipFile, prefix: str, site: str) -> None:
        self._archive = archive
        self._prefix = prefix
        self._site = site
        names = [name for name in archive.namelist() if not name.endswith("/")]
        folders = {name.partition("/")[0] for name in names}
        metadata = [folder for folder in folders if folder.endswith(".dist-info")]
        parsed = parse_metadata_name(metadata[0]) if len(metadata) == 1 else None
        if parsed is None:
            raise BadWheel("%s is not one package's wheel" % archive.filename)
        self.metadata, self.package = metadata[0], parsed[0]
        self._data = self.metadata[: -len(".dist-info")] + ".data"
        self.paths = {name: self._place(name) for name in names if name != "%s/%s" % (self.metadata, RECORD)}

    def read(self, name: str) -> bytes:
        """A file as it is installed: a script names this environment's interpreter."""
        content = self._archive.read(name)
        if self.is_script(name) and content.startswith(SHEBANG):
            return b"#!" + os.fsencode(os.path.join(self._prefix, "bin", "python")) + content[len(SHEBANG) :]
        return content

    def is_script(self, name: str) -> bool:
        return name.startswith(self._data + "/scripts/")

    def is_executable(self, name: str) -> bool:
        return self.is_script(name) or bool(self._archive.getinfo(name).external_attr >> 16 & 0o100)

    def build_record(self) -> bytes:
        """The RECORD of the installed package, the same for every node."""
        packed = self._archive.read("%s/%s" % (self.metadata, RECORD)).decode()
        rows = []
        for row in csv.reader(packed.splitlines()):
            name = row[0]
            if name not in self.paths:
                continue
            path = os.path.relpath(self.paths[name], self._site)
            if self.is_script(name):
                content = self.read(name)
                rows.append((path, hash_record_entry(content), str(len(content))))
            else:
                rows.append((path, row[1], row[2]))
        return format_record([*sorted(rows), ("%s/%s" % (self.metadata, RECORD), "", "")])

    def _place(self, name: str) -> str:
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise BadWheel("%r leads out of the environment" % name)
        if not name.startswith(self._data + "/"):
            return os.path.join(self._site, name)
        scheme, _, rest = name[len(self._data) + 1 :].partition("/")
        folders = {"scripts": "bin", "data": "", "purelib": self._site, "platlib": self._site}
        if scheme not in folders or not rest:
            raise BadWheel("%r has no place in the environment" % name)
        return os.path.join(folders[scheme], rest)


def hash_record_entry(content: bytes) -> str:
    """The hash of a file's content as in RECORD."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def format_record(rows: Iterable[tuple[str, str, str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "surrogateescape")


def install_wheel(prefix: str, site: str, wheel: str) -> None:
    """Replaces any other version of the package."""
    tree = _Tree(prefix, site)
    with zipfile.ZipFile(wheel) as archive:
        layout = WheelLayout(archive, prefix, site)
        old = tree.set_pending(layout.package)
        paths = {os.path.normpath(path) for path in layout.paths.values()}
        stale = [path for path in tree.list_files(old) if path not in paths]
        pending = os.path.join(site, NEW + layout.metadata)
        # Written first: it says which files an interrupted installation left.
        tree.write(os.path.join(pending, RECORD), io.BytesIO(layout.build_record()), executable=False)
        for name, path in layout.paths.items():
            place = path
            if name.startswith(layout.metadata + "/"):
                place = os.path.join(pending, name[len(layout.metadata) + 1 :])
            if layout.is_script(name):
                tree.write(place, io.BytesIO(layout.read(name)), executable=True)
            else:
                with archive.open(name) as source:
                    tree.write(place, source, executable=layout.is_executable(name))
    tree.remove(stale)
    os.rename(os.path.join(prefix, pending), os.path.join(tree.site, layout.metadata))
    tree.drop_pending(layout.package)


def remove_package(prefix: str, site: str, package: str) -> None:
    """Removes every file that the package's RECORD lists; a package without one stays, unless it is only pending."""
    tree = _Tree(prefix, site)
    names = [name for name in find_metadata(tree.site, package) if not name.startswith(PENDING)]
    if all(os.path.isfile(os.path.join(tree.site, name, RECORD)) for name in names):
        tree.remove(tree.list_files(tree.set_pending(package)))
        tree.drop_pending(package)


class _Tree:
    """The files of an environment; nothing outside of it is written or removed, whatever a RECORD or a link says."""

    def __init__(self, prefix: str, site: str) -> None:
        self.site = os.path.join(prefix, site)
        self._prefix = prefix
        self._site = site
        self._real = os.path.realpath(prefix)
        self._folders: dict[str, str | None] = {}

    def set_pending(self, package: str) -> list[str]:
        """Hides a package's metadata and returns it; from here on, the package counts as incomplete."""
        names = find_metadata(self.site, package)
        for number, name in enumerate(names):
            if not name.startswith(PENDING):
                names[number] = hidden = PENDING + name
                self._clear(os.path.join(self.site, hidden))
                os.rename(os.path.join(self.site, name), os.path.join(self.site, hidden))
        return names

    def drop_pending(self, package: str) -> None:
        for name in find_metadata(self.site, package):
            if name.startswith(PENDING):
                self._clear(os.path.join(self.site, name))

    def list_files(self, metadata: Iterable[str]) -> list[str]:
        """The recorded files, relative to the prefix."""
        paths = (path for name in metadata for path in list_recorded_paths(os.path.join(self.site, name)))
        return [os.path.normpath(os.path.join(self._site, path)) for path in paths]

    def write(self, path: str, source: IO[bytes], *, executable: bool) -> None:
        """Writes a file under a temporary name and renames it."""
        folder, name = os.path.split(path)
        if folder not in self._folders:
            os.makedirs(os.path.join(self._prefix, folder), exist_ok=True)
        real = self._locate(folder)
        if real is None:
            raise OSError(40, "leads out of the environment", os.path.join(self._prefix, folder))
        draft = os.path.join(real, DRAFT)
        try:
            with open(_create_file(draft, 0o755 if executable else 0o644), "wb") as file:
                shutil.copyfileobj(source, file, _BLOCK)
            os.replace(draft, os.path.join(real, name))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise

    def remove(self, paths: Iterable[str]) -> None:
        """Removes files, what was compiled from them, and directories that become empty."""
        folders = set()
        for path in paths:
            folder, name = os.path.split(path)
            real = self._locate(folder)
            if real is None:
                continue
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(real, name))
            folders.add(folder)
            if name.endswith(".py"):
                self._remove_compiled(real, name[: -len(".py")])
        for folder in sorted(folders, key=len, reverse=True):
            self._remove_empty(folder)

    def _remove_compiled(self, folder: str, module: str) -> None:
        cache = os.path.join(folder, "__pycache__")
        for name in list_names(cache):
            if name.startswith(module + ".") and name.endswith(".pyc"):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(cache, name))

    def _remove_empty(self, folder: str) -> None:
        kept = ("", "bin", *_list_parents(self._site))
        while folder not in kept:
            real = self._locate(folder)
            try:
                with contextlib.suppress(OSError):
                    os.rmdir(os.path.join(real or "", "__pycache__"))
                os.rmdir(real or "")
            except OSError:
                return
            folder = os.path.dirname(folder)

    def _locate(self, folder: str) -> str | None:
        """The real path of a directory; None if that is outside of the environment."""
        if folder not in self._folders:
            real = os.path.realpath(os.path.join(self._prefix, folder))
            inside = real == self._real or real.startswith(self._real + os.sep)
            self._folders[folder] = real if inside else None
        return self._folders[folder]

    def _clear(self, path: str) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(path)


def _create_file(path: str, mode: int) -> int:
    """Creates a file, never through a link; one that an interrupted installation left is replaced."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, mode)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, mode)


def _list_parents(path: str) -> list[str]:
    parents = [path]
    while parents[-1]:
        parents.append(os.path.dirname(parents[-1]))
    return parents
