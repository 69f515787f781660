"""Keeps a limited number of files open: thousands of ranks would exhaust the process's descriptors."""

import os
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from aboard.record.run_directory import PRIVATE_FILE

OPEN_FILES = 128


class OpenFiles:
    """The most recently used files of one folder, by name."""

    def __init__(self, folder: Path, *, write: bool, limit: int = OPEN_FILES) -> None:
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._flags = os.O_CLOEXEC | (os.O_RDWR | os.O_CREAT if write else os.O_RDONLY)
        self._limit = limit
        self._open: OrderedDict[str, int] = OrderedDict()

    def write(self, name: str, data: bytes, offset: int) -> None:
        """Writes all of the data, or raises an OSError."""
        fd = self._fd(name)
        written = os.pwrite(fd, data, offset)
        while written < len(data):
            written += os.pwrite(fd, data[written:], offset + written)

    def read(self, name: str, size: int, offset: int) -> bytes:
        return os.pread(self._fd(name), size, offset)

    def truncate(self, name: str, size: int) -> None:
        """Best effort: nobody reads what is past the end."""
        with suppress(OSError):
            os.ftruncate(self._fd(name), size)

    def remove(self, name: str) -> None:
        self.close_file(name)
        with suppress(OSError):
            os.unlink(name, dir_fd=self._folder)

    def close_file(self, name: str) -> None:
        fd = self._open.pop(name, None)
        if fd is not None:
            os.close(fd)

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _fd(self, name: str) -> int:
        fd = self._open.get(name)
        if fd is not None:
            self._open.move_to_end(name)
            return fd
        while len(self._open) >= self._limit:
            os.close(self._open.popitem(last=False)[1])
        fd = self._open[name] = os.open(name, self._flags, PRIVATE_FILE, dir_fd=self._folder)
        return fd
