"""A bounded spool on disk: the end of an output, read by offset; dropped bytes are counted."""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple


class _Segment(NamedTuple):
    base: int
    fd: int
    path: str


class OutputSpool:
    """Two segment files; the older is removed when the newer is full, so at least half of `limit` is kept."""

    def __init__(self, path: str, limit: int) -> None:
        self._path = path
        self._half = max(1, limit // 2)
        self._segments: list[_Segment] = []
        self._made = 0
        self.end = 0
        self._next()

    @property
    def start(self) -> int:
        """The offset of the oldest byte kept; earlier ones were dropped."""
        return self._segments[0].base

    def append(self, data: bytes) -> None:
        """Never raises for a full disk: the bytes count as dropped, and the child goes on."""
        while data:
            room = self._half - (self.end - self._segments[-1].base)
            if room <= 0:
                self._next()
                continue
            part, data = data[:room], data[room:]
            is_written = self._write(part)
            self.end += len(part)
            if not is_written:
                # A hole cannot be read back: start again after it.
                self.close()
                self._next()

    def read(self, offset: int, size: int) -> tuple[int, bytes]:
        """Up to `size` bytes at `offset`, or from the oldest byte kept after it, and their offset."""
        offset = max(offset, self.start)
        for base, fd, _path in reversed(self._segments):
            if offset >= base:
                return offset, os.pread(fd, min(size, self.end - offset), offset - base) if fd >= 0 else b""
        return offset, b""

    def release(self) -> None:
        """Deletes the files; their content counts as dropped if it is requested again."""
        self.close()
        self._segments.append(_Segment(self.end, -1, ""))

    def close(self) -> None:
        while self._segments:
            self._drop_oldest()

    def _write(self, part: bytes) -> bool:
        base, fd, _path = self._segments[-1]
        at = self.end - base
        try:
            while part:
                written = os.pwrite(fd, part, at)
                at += written
                part = part[written:]
        except OSError:
            return False
        return True

    def _next(self) -> None:
        while len(self._segments) > 1:
            self._drop_oldest()
        path = "%s.%d" % (self._path, self._made)
        self._made += 1
        fd = -1
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._segments.append(_Segment(self.end, fd, path))

    def _drop_oldest(self) -> None:
        _base, fd, path = self._segments.pop(0)
        with contextlib.suppress(OSError):
            os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(path)
