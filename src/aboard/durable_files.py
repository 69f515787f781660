"""Writes files durably: hashed while written, synced, then renamed. No link is followed: it may be cloned."""

import errno
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Annotated

from aboard.core.decoding import CustomDecoder, DecodeError, Matching
from aboard.diagnoses import AboardError
from aboard.diagnoses.files import local_files
from aboard.diagnoses.untrusted import escape_text
from aboard.lazy_dataclass import dataclass

# Large enough that hashing and writing, which release the GIL, take nearly all of the time.
_BLOCK = 8 << 20


def parse_file_name(name: object) -> str:
    """A manifest may come from elsewhere: it may name only files beside itself."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w+@-][\w.+@-]{0,254}", name):
        raise DecodeError(f"{escape_text(str(name))} is not a plain file name")
    return name


FileName = Annotated[str, CustomDecoder(parse_file_name)]
Sha256 = Annotated[str, Matching(r"[0-9a-f]{64}")]


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """A file of a set, by its name beside the manifest."""

    name: FileName
    bytes: int
    sha256: Sha256


def open_without_link(path: Path, flags: int, mode: int = 0o644) -> int:
    """Opens a regular file; raises OSError if somebody planted a link, a device or a pipe in its place."""
    try:
        # Not blocking, for a pipe.
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a link, which Aboard doesn't follow", str(path)) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return handle


class HashedFile:
    """Written sequentially under a temporary name; `publish` renames it.

    With `in_place`, it has its name from the beginning, and must not exist.
    """

    def __init__(self, path: Path, *, mode: int = 0o644, in_place: bool = False) -> None:
        self._path = path
        # Named by process: no other process takes over the file of a killed one.
        self._draft = path if in_place else path.with_name(f".{path.name}.{os.getpid()}")
        new = os.O_EXCL if in_place else os.O_TRUNC
        self._handle = open_without_link(self._draft, os.O_WRONLY | os.O_CREAT | new, mode)
        self._pending = bytearray()
        self._hash = hashlib.sha256()
        self.bytes = 0

    @property
    def closed(self) -> bool:
        """Read by pyarrow, which then accepts this as a file."""
        return self._handle < 0

    def write(self, data: bytes | memoryview) -> None:
        self.bytes += len(data)
        if len(self._pending) + len(data) >= _BLOCK:
            self._write_blocks(memoryview(self._pending))
            self._pending = bytearray()
        if len(data) >= _BLOCK:
            self._write_blocks(memoryview(data))
        else:
            self._pending += data

    def publish(self, *, sync: bool) -> FileEntry:
        self._write_blocks(memoryview(self._pending), sync=sync)
        self._close()
        if self._draft != self._path:
            os.rename(self._draft, self._path)  # noqa: PTH104 - one call of the kernel, and a test stops at each of them
        return FileEntry(name=self._path.name, bytes=self.bytes, sha256=self._hash.hexdigest())

    def drop(self) -> None:
        self._close()
        self._draft.unlink(missing_ok=True)

    def _write_blocks(self, data: memoryview, *, sync: bool = False) -> None:
        try:
            for at in range(0, len(data), _BLOCK):
                block = data[at : at + _BLOCK]
                self._hash.update(block)
                while block:
                    block = block[os.write(self._handle, block) :]
            if sync:
                os.fsync(self._handle)
        except OSError as error:
            self._close()
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def _close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def write_atomically(path: Path, content: str | bytes, *, sync: bool, mode: int = 0o644) -> None:
    """Replaces a file's content atomically; with `sync`, a power cut leaves either the old or the new one."""
    file = HashedFile(path, mode=mode)
    try:
        file.write(content.encode() if isinstance(content, str) else content)
        file.publish(sync=sync)
    except OSError:
        file.drop()
        raise
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
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
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def hold_lock(path: Path, *, patience: float) -> Iterator[None]:
    """Admits one process at a time; the kernel releases the lock when its holder dies."""
    handle = open_without_link(path, os.O_RDWR | os.O_CREAT)
    try:
        if not acquire_lock(handle, patience=patience):
            host, process = read_lock_holder(handle)
            seen = f"process {process} on {host} is still preparing the same data and holds {path}"
            raise AboardError(local_files.LOCKED, seen, process=process, host=host)
        note_lock_holder(handle)
        yield
    finally:
        os.close(handle)


def acquire_lock(handle: int, *, patience: float) -> bool:
    """Waits for the kernel's lock on an open file; False if another process still holds it."""
    deadline = monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic() > deadline:
                return False
            sleep(0.05)
        else:
            return True


def note_lock_holder(handle: int) -> None:
    """Writes into a locked file which process on which host holds it."""
    os.truncate(handle, 0)
    os.pwrite(handle, f"{os.uname().nodename} {os.getpid()}".encode(), 0)


def read_lock_holder(handle: int) -> tuple[str, str]:
    """The host and the process that the holder of the lock wrote; others may have written there, too."""
    host, _, process = os.pread(handle, 200, 0).decode("utf-8", "replace").partition(" ")
    return host, process
