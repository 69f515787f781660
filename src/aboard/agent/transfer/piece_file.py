"""A large file in pieces that arrive in any order; each is verified by its hash before it is written."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat

from aboard.agent.transfer.partial_file import open_locked, part_name, piece_part_name

HASH_BYTES = 32


class PieceFile:
    """One file of a node: complete, or a partial file with gaps. A second writer gets BlockingIOError."""

    def __init__(self, folder: int, name: str, size: int, sha256: str, piece: int, hashes: bytes) -> None:
        self.size = size
        self._piece = piece
        self._name = name
        self._sha256 = sha256
        self._hashes = [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
        if piece <= 0 or len(hashes) % HASH_BYTES or len(self._hashes) != -(-size // piece):
            raise ValueError("%d bytes in pieces of %d need another number of hashes" % (size, piece))
        self._folder = folder
        self._fd = -1
        self._old = 0

    def open_complete(self) -> None:
        """Opens the finished file, to serve it."""
        self._fd = os.open(self._name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size != self.size:
            raise OSError(22, "not a file of the expected size", self._name)

    def open_partial(self) -> None:
        """Opens the partial file; one that a sender left without gaps is continued."""
        pieces, part = piece_part_name(self._sha256), part_name(self._sha256)
        with contextlib.suppress(FileNotFoundError):
            if not _exists(self._folder, pieces) and os.stat(part, dir_fd=self._folder, follow_symlinks=False):
                self._fd = open_locked(self._folder, part)
                os.rename(part, pieces, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        if self._fd < 0:
            self._fd = open_locked(self._folder, pieces)
        self._old = min(self.size, os.fstat(self._fd).st_size)
        os.ftruncate(self._fd, self.size)

    @property
    def pieces(self) -> int:
        return len(self._hashes)

    def span(self, number: int) -> tuple[int, int]:
        """The offset and length of a piece."""
        at = number * self._piece
        return at, min(self._piece, self.size - at)

    def fileno(self) -> int:
        return self._fd

    def holds(self, number: int) -> bool:
        """Whether an earlier transfer left this piece: found by its hash, so that a kill can't leave a wrong record."""
        at, length = self.span(number)
        return at + length <= self._old and self.fits(number, os.pread(self._fd, length, at))

    def fits(self, number: int, data: bytes | memoryview) -> bool:
        return len(data) == self.span(number)[1] and hashlib.sha256(data).digest() == self._hashes[number]

    def write(self, number: int, data: memoryview) -> None:
        at = self.span(number)[0]
        while data:
            written = os.pwrite(self._fd, data, at)
            at += written
            data = data[written:]

    def hand_over(self) -> None:
        """Gives the complete file the name of a partial one: the file receiver makes it durable and publishes it."""
        pieces, part = piece_part_name(self._sha256), part_name(self._sha256)
        os.rename(pieces, part, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        # It is still served from here, and nobody writes to it any more.
        fcntl.flock(self._fd, fcntl.LOCK_UN)


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
