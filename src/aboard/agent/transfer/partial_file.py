"""One file on its way in: written under a passing name, hashed as it comes, renamed when it is whole and right."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time

BLOCK = 1024 * 1024
PART = ".part"


def part_name(sha256: str) -> str:
    """By content: what was cut off goes on only with more of the same."""
    if len(sha256) != 64 or not sha256.isalnum() or not sha256.isascii():  # noqa: PLR2004 - letters of a sha256
        raise ValueError("%r is no sha256" % sha256[:80])
    return ".aboard-%s%s" % (sha256, PART)


class PartialFile:
    """Takes up where an earlier one was cut off; only one at a time, else BlockingIOError."""

    def __init__(self, folder: int, name: str, size: int, sha256: str) -> None:
        self.name = name
        self.sha256 = sha256
        self.at = 0
        self._folder = folder
        self._size = size
        self._part = part_name(sha256)
        self._fd = _open_locked(folder, self._part)
        self._hash = hashlib.sha256()
        self._old = os.fstat(self._fd).st_size
        if self._old > size:
            os.ftruncate(self._fd, 0)
            self._old = 0

    def is_for(self, name: str, sha256: str) -> bool:
        return self.name == name and self.sha256 == sha256

    def catch_up(self, deadline: float) -> bool:
        """Hashes what is there already; False when there is more of it than time."""
        while self.at < self._old:
            if time.monotonic() > deadline:
                return False
            block = os.pread(self._fd, min(BLOCK, self._old - self.at), self.at)
            if not block:
                break
            self._hash.update(block)
            self.at += len(block)
        self._old = self.at
        return True

    def write(self, at: int, data: memoryview) -> None:
        if at != self.at or at < self._old or at + len(data) > self._size:
            raise ValueError("%d bytes for %s came at %d, not at %d" % (len(data), self.name, at, self.at))
        self._hash.update(data)
        while data:
            written = os.pwrite(self._fd, data, self.at)
            self.at += written
            data = data[written:]

    def publish(self) -> str:
        """Its hash; when that is right it has its own name now, durably, else nothing is left of it."""
        digest = self._hash.hexdigest()
        try:
            if digest == self.sha256:
                os.fsync(self._fd)
                os.rename(self._part, self.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
                os.fsync(self._folder)
            else:
                os.unlink(self._part, dir_fd=self._folder)
        finally:
            self.close()
        return digest

    def close(self) -> None:
        """Leaves what has come so far to whoever goes on with it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @staticmethod
    def clear(folder: int, part: str) -> None:
        """Removes a part, unless it is being written."""
        with contextlib.suppress(OSError):
            fd = _open_locked(folder, part)
            os.unlink(part, dir_fd=folder)
            os.close(fd)


def _open_locked(folder: int, part: str) -> int:
    """The part, locked: the lock goes with the process that holds it, however that ends."""
    while True:
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had it before us may have renamed it between the two calls.
            if os.path.samestat(os.fstat(fd), os.stat(part, dir_fd=folder, follow_symlinks=False)):
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
