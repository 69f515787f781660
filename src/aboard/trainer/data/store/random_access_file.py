"""A file that any number of threads and forked processes read at any offset."""

import os
from pathlib import Path

from aboard.file_integrity import make_damage_error


class RandomAccessFile:
    """An open file; closed with the last reference, so that no thread loses it during a read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise make_damage_error(path, f"it can't be read ({error.strerror})") from error

    def at(self, offset: int, size: int) -> bytes:
        data = os.pread(self._handle, size, offset)
        while len(data) < size:
            more = os.pread(self._handle, size - len(data), offset + len(data))
            if not more:
                raise make_damage_error(self._path, f"it ends before byte {offset + size}")
            data += more
        return data

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
