"""One incoming file: written under a temporary name, hashed as it arrives, renamed when complete and correct."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import time

BLOCK = 1024 * 1024
PART = ".part"
PRIVATE = 0o600
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


def part_name(sha256: str) -> str:
    """Named by content hash, so that an interrupted transfer resumes only with the same content."""
    if len(sha256) != 64 or not sha256.isalnum() or not sha256.isascii():  # noqa: PLR2004 - letters of a sha256
        raise ValueError("%r is no sha256" % sha256[:80])
    return ".aboard-%s%s" % (sha256, PART)


def piece_part_name(sha256: str) -> str:
    """A partial file with gaps, from peers; a sender could not resume it at its end."""
    return part_name(sha256)[: -len(PART)] + ".pieces" + PART


class PartialFile:
    """Resumes an interrupted transfer; a second writer gets BlockingIOError. Only its user can read it until then."""

    def __init__(self, folder: int, name: str, size: int, sha256: str, *, mode: int = PRIVATE, part: str = "") -> None:
        self.name = name
        self.sha256 = sha256
        self.at = 0
        self._folder = folder
        self.size = size
        self._mode = mode
        self._part = part_name(part or sha256)
        self._fd = open_locked(folder, self._part)
        self._hash = hashlib.sha256()
        self._verified = False
        self._old = os.fstat(self._fd).st_size
        if self._old > size:
            os.ftruncate(self._fd, 0)
            self._old = 0

    def is_for(self, name: str, sha256: str) -> bool:
        return self.name == name and self.sha256 == sha256

    def catch_up(self, deadline: float) -> bool:
        """Hashes the existing part; False if the time was not enough."""
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

    def trust(self) -> None:
        """All of its pieces were verified when they arrived from peers: it is not read again."""
        if self._old == self.size:
            self.at = self.size
            self._verified = True

    def write(self, at: int, data: memoryview) -> None:
        if at != self.at or at < self._old or at + len(data) > self.size:
            raise ValueError("%d bytes for %s came at %d, not at %d" % (len(data), self.name, at, self.at))
        self._hash.update(data)
        while data:
            written = os.pwrite(self._fd, data, self.at)
            self.at += written
            data = data[written:]

    def publish(self) -> str:
        """Returns its hash; if it is right, the file gets its final name, durably, otherwise it is deleted."""
        digest = self.sha256 if self._verified else self._hash.hexdigest()
        try:
            if digest == self.sha256:
                os.fchmod(self._fd, self._mode)
                os.fsync(self._fd)
                os.rename(self._part, self.name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
                os.fsync(self._folder)
            else:
                os.unlink(self._part, dir_fd=self._folder)
        finally:
            self.close()
        return digest

    def close(self) -> None:
        """Keeps the part for a later transfer."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @staticmethod
    def clear(folder: int, part: str) -> None:
        """Removes a partial file, unless it is being written."""
        with contextlib.suppress(OSError):
            fd = open_locked(folder, part)
            os.unlink(part, dir_fd=folder)
            os.close(fd)


def open_locked(folder: int, part: str) -> int:
    """Opens and locks the partial file; the lock is released when the process exits, however that happens."""
    while True:
        try:
            fd = os.open(part, _OPEN | os.O_CREAT | os.O_EXCL, PRIVATE, dir_fd=folder)
        except FileExistsError:
            try:
                fd = _open_earlier(folder, part)
            except FileNotFoundError:
                continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its previous owner may have renamed it between the two calls.
            if os.path.samestat(os.fstat(fd), os.stat(part, dir_fd=folder, follow_symlinks=False)):
                return fd
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _open_earlier(folder: int, part: str) -> int:
    """Opens what an earlier transfer left. What somebody else put there is removed: FileNotFoundError.

    Whoever can write to the directory could keep a file of theirs open, or link one of ours under this name.
    """
    status = os.stat(part, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1:
        fd = os.open(part, _OPEN, dir_fd=folder)
        if os.path.samestat(os.fstat(fd), status):
            os.fchmod(fd, PRIVATE)
            return fd
        os.close(fd)
    else:
        os.unlink(part, dir_fd=folder)
    raise FileNotFoundError(part)
