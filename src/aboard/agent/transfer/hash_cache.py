"""Caches the hashes of a directory's files, so that the next launch does not read unchanged ones again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time

from aboard.agent import frames
from aboard.agent.private_folders import make_private_folder, replace_file

BLOCK = 1024 * 1024
# A file written this recently can change again without a new time stamp (git's "racy" entries).
SETTLED_NS = 2_000_000_000


class HashCache:
    """Hashes by name, size, times and inode; stored in the user's cache, since a model directory may be read-only."""

    def __init__(self, folder: str) -> None:
        self._path = _locate_cache(folder)
        self._known = _load_cache(self._path)
        self._new = False
        self._half: _HashInProgress | None = None

    def of(self, folder: int, names: list[str], deadline: float) -> tuple[dict[str, str], int]:
        """Hashes as many as time permits, and returns the bytes read of the next one; "" for an unreadable file."""
        hashes: dict[str, str] = {}
        for name in names:
            try:
                sha256 = self._one(folder, name, deadline)
            except OSError:
                sha256 = ""
            if sha256 is None:
                return hashes, self._half.read if self._half else 0
            hashes[name] = sha256
        self.save()
        return hashes, 0

    def learn(self, folder: int, name: str, sha256: str) -> None:
        """Records the hash of a file that we wrote."""
        self._known[name] = [*_build_stamp(os.stat(name, dir_fd=folder)), sha256]
        self._new = True

    def save(self) -> None:
        """Saves the cache; failing to do so only costs time."""
        if not self._new:
            return
        self._new = False
        with contextlib.suppress(OSError):
            make_private_folder(os.path.dirname(self._path))
            replace_file(self._path, json.dumps(self._known).encode())

    def _one(self, folder: int, name: str, deadline: float) -> str | None:
        stamp = _build_stamp(os.stat(name, dir_fd=folder))
        entry = self._known.get(name)
        if entry is not None and entry[:-1] == stamp:
            return str(entry[-1])
        if self._half is None or self._half.name != name:
            self._half = _HashInProgress(folder, name)
        sha256 = self._half.advance(deadline)
        if sha256 is None:
            return None
        stamp = self._half.stamp
        self._half = None
        if _build_stamp(os.stat(name, dir_fd=folder)) == stamp and time.time_ns() - max(stamp[1:3]) > SETTLED_NS:
            self._known[name] = [*stamp, sha256]
            self._new = True
        return sha256


class _HashInProgress:
    """A partially hashed file."""

    def __init__(self, folder: int, name: str) -> None:
        self.name = name
        self.read = 0
        self._hash = hashlib.sha256()
        self._fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        status = os.fstat(self._fd)
        self.stamp = _build_stamp(status)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(22, "not a file", name)

    def __del__(self) -> None:
        os.close(self._fd)

    def advance(self, deadline: float) -> str | None:
        while time.monotonic() < deadline:
            block = os.read(self._fd, BLOCK)
            if not block:
                return self._hash.hexdigest()
            self._hash.update(block)
            self.read += len(block)
        return None


def _build_stamp(status: os.stat_result) -> list[int]:
    """Includes the change time, since `cp -p` and rsync set the modification time back."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _locate_cache(folder: str) -> str:
    """One file for each directory and host: homes may be shared where disks are not."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    whole = "%s:%s" % (os.uname().nodename, os.path.realpath(folder))
    name = hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return os.path.join(base, "aboard", "sums", name + ".json")


def _load_cache(path: str) -> dict[str, list[object]]:
    """The saved hashes; none if the file is missing or not ours, so that everything is hashed again."""
    with contextlib.suppress(OSError, frames.FrameError), open(path, "rb") as file:
        entries = frames.decode_with(json.load, file, "no cache of hashes")
        if isinstance(entries, dict):
            return {name: fields for name, fields in entries.items() if isinstance(fields, list) and len(fields) == 5}  # noqa: PLR2004 - the stamp and the hash
    return {}
