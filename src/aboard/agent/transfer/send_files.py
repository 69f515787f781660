"""Requests to a file reader: list a tree, hash its files, read their bytes. It writes nothing there."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator

from aboard.agent import frames
from aboard.agent.transfer.file_names import OWN_PREFIX, validate_file_name
from aboard.agent.transfer.hash_cache import HashCache
from aboard.agent.transfer.root_folder import refuse_system_folder

# Entries, characters and bytes per reply: each fits into one frame, even if JSON escapes every character with six.
PAGE_ENTRIES = 500
PAGE_CHARS = 1024 * 1024
MOST_BYTES = 1024 * 1024
# A marker for 512 ranks of a 70B model has 55 MB.
MOST_MARKER = 256 << 20
KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}


class SendFiles:
    """The requested paths. Links below a requested path are listed, and never followed."""

    def __init__(self) -> None:
        # The path of the last request.
        self.path = ""
        self._sums: dict[str, HashCache] = {}
        self._roots: dict[str, int] = {}
        self._walk: Iterator[list[object]] = iter(())
        self._page = -1
        self._open: tuple[str, str, int] = ("", "", -1)
        self.closed = False

    def take(self, message: frames.Message, _tail: memoryview, deadline: float) -> frames.Message:
        """Handles one request; one that takes too long returns what it has."""
        if message["do"] == "leave":
            self.close()
            return {}
        self.path = path = os.path.expanduser(str(message["folder"]))
        if not os.path.isabs(path) or "\0" in path:
            raise ValueError("%r is no absolute path" % path)
        refuse_system_folder(path)
        if message["do"] == "list":
            return self._list(path, int(message["page"]), deadline)
        if message["do"] == "marker":
            return {"tail": self._summarize_marker(path, str(message["name"]))}
        if message["do"] == "sums":
            names = ["/".join(self._split_name(name)) for name in message["names"]]
            cache = self._sums.setdefault(path, HashCache(path))
            sums, read = cache.of(self._root(path), names, deadline)
            return {"sums": sums, "read": read}
        data = self._read(path, message["name"], int(message["at"]), int(message["bytes"]))
        return {"tail": data}

    def close(self) -> None:
        self.closed = True
        for cache in self._sums.values():
            cache.save()
        self._close_file()
        while self._roots:
            os.close(self._roots.popitem()[1])

    def sends(self, _name: str) -> bool:
        """Whether this path below a requested one may be listed and read."""
        return True

    def _list(self, path: str, page: int, deadline: float) -> frames.Message:
        """The next entries, each directory before what is in it; a file's only entry is the file itself."""
        single = not stat.S_ISDIR(os.stat(path).st_mode)
        if page == 0:
            self._walk = (
                iter([_describe_entry(os.path.basename(path), os.stat(path))]) if single else self._walk_tree(path)
            )
        elif page != self._page + 1:
            raise ValueError("page %d after page %d" % (page, self._page))
        self._page = page
        entries: list[object] = []
        chars = 0
        for entry in self._walk:
            entries.append(entry)
            chars += len(str(entry[0])) + len(str(entry[-1]))
            if len(entries) == PAGE_ENTRIES or chars > PAGE_CHARS or time.monotonic() > deadline:
                return {"entries": entries, "single": single, "done": False}
        return {"entries": entries, "single": single, "done": True}

    def _read(self, path: str, name: str, at: int, size: int) -> bytes:
        """A range of one file; shorter only at its end."""
        if self._open[:2] != (path, name):
            self._close_file()
            self._open = (path, name, _open_file(self._root(path), self._split_name(name)))
        data = b""
        while len(data) < min(size, MOST_BYTES):
            part = os.pread(self._open[2], min(size, MOST_BYTES) - len(data), at + len(data))
            if not part:
                break
            data += part
        if os.fstat(self._open[2]).st_size <= at + len(data):
            # Read to its end: somebody may remove it, and its space is to be free then.
            self._close_file()
        return data

    def _summarize_marker(self, path: str, name: str) -> bytes:
        from aboard.agent.marker_summary import summarize_marker  # noqa: PLC0415 - only a resume needs it

        with open(_open_file(self._root(path), self._split_name(name)), "rb") as file:
            return summarize_marker(file.read(MOST_MARKER))

    def _close_file(self) -> None:
        if self._open[2] >= 0:
            os.close(self._open[2])
        self._open = ("", "", -1)

    def _root(self, path: str) -> int:
        if path not in self._roots:
            self._roots[path] = self._open_root(path)
        return self._roots[path]

    def _open_root(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _split_name(self, name: object) -> list[str]:
        if not self.sends(str(name)):
            raise ValueError("%r is not sent" % (name,))
        return [validate_file_name(part) for part in str(name).split("/")]

    def _walk_tree(self, path: str) -> Iterator[list[object]]:
        """Every entry below a directory; files of our own transfers are left out."""
        pending = [""]
        while pending:
            prefix = pending.pop()
            with os.scandir(os.path.join(path, prefix)) as found:
                entries = sorted(found, key=lambda entry: entry.name)
            for entry in entries:
                name = prefix + entry.name
                if entry.name.startswith(OWN_PREFIX) or not self.sends(name):
                    continue
                target = os.readlink(entry.path) if entry.is_symlink() else ""
                yield _describe_entry(name, entry.stat(follow_symlinks=False), target)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(name + "/")


def _open_file(root: int, parts: list[str]) -> int:
    """Opens a regular file below the root without following a link, or waiting for a pipe."""
    folder = os.dup(root)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = inner
        fd = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(22, "not a file", "/".join(parts))
    return fd


def _describe_entry(name: str, status: os.stat_result, target: str = "") -> list[object]:
    """The name, kind, size, mode and link target; the time in microseconds, which JSON carries exactly."""
    kind = KINDS.get(stat.S_IFMT(status.st_mode), "other")
    modified = max(0, status.st_mtime_ns // 1000)
    return [name, kind, status.st_size, stat.S_IMODE(status.st_mode), modified, target]
