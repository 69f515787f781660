"""Writes files atomically: hashed while written, synced, then renamed. No link is followed: it may be cloned."""

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from aboard.data.store.shard_manifest import FileEntry
from aboard.diagnoses import AboardError
from aboard.diagnoses.trainer import data

_BLOCK = 1 << 20


def open_without_link(path: Path, flags: int) -> int:
    """Opens a regular file; raises OSError if somebody planted a link, a device or a pipe in its place."""
    try:
        # Not blocking, for a pipe.
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a link, which Aboard doesn't follow", str(path)) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return handle


class HashedFile:
    """Written sequentially under a temporary name; `publish` renames it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Named by process: no other process takes over the file of a killed one.
        self._draft = path.with_name(f".{path.name}.{os.getpid()}")
        self._file = os.fdopen(open_without_link(self._draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")
        self._hash = hashlib.sha256()
        self.bytes = 0

    @property
    def closed(self) -> bool:
        """Read by pyarrow, which then accepts this as a file."""
        return self._file.closed

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)

    def publish(self, *, sync: bool) -> FileEntry:
        self._file.flush()
        if sync:
            os.fsync(self._file.fileno())
        self._file.close()
        self._draft.replace(self._path)
        return FileEntry(name=self._path.name, bytes=self.bytes, sha256=self._hash.hexdigest())

    def drop(self) -> None:
        self._file.close()
        self._draft.unlink(missing_ok=True)


def write_atomically(path: Path, text: str, *, sync: bool) -> None:
    """Replaces a file's text atomically; with `sync`, a power cut leaves either the old or the new one."""
    file = HashedFile(path)
    file.write(text.encode())
    file.publish(sync=sync)


def fsync_directory(folder: Path) -> None:
    """Makes the names in a directory durable (fsync(2))."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def compute_sha256(path: Path) -> str:
    """The hash of a file's content, in bounded memory, without blocking other threads."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def hold_lock(path: Path, *, patience: float) -> Iterator[None]:
    """Admits one process at a time; the kernel releases the lock when its holder dies."""
    handle = open_without_link(path, os.O_RDWR | os.O_CREAT)
    try:
        _acquire_lock(handle, path, monotonic() + patience)
        os.truncate(handle, 0)
        os.pwrite(handle, f"{os.uname().nodename} {os.getpid()}".encode(), 0)
        yield
    finally:
        os.close(handle)


def _acquire_lock(handle: int, path: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic() > deadline:
                host, _, process = os.pread(handle, 200, 0).decode("utf-8", "replace").partition(" ")
                seen = f"process {process} on {host} is still preparing the same data and holds {path}"
                raise AboardError(data.LOCKED, seen, process=process, host=host) from None
            sleep(0.1)
        else:
            return
