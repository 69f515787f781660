"""Durable writes: hashed on the way, synced, and only then renamed into place."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from aboard.lazy_dataclass import dataclass
from aboard.train.checkpoint.staging_buffers import StagedFile

# Large enough that hashing and writing, which release the GIL, take nearly all of the time.
_BLOCK = 8 << 20
# One hashes while the other waits for the disk.
_WRITERS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenFile:
    """A durable file with its size and hash."""

    name: str
    bytes: int
    sha256: str


def write_files(folder: Path, drafts: Sequence[StagedFile]) -> list[WrittenFile]:
    """Writes all drafts as files and syncs them and their names; the first error ends it."""
    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="checkpoint-write") as pool:
        sealed = list(pool.map(lambda draft: _write_file(folder / draft.name, draft.header, draft.body), drafts))
    sync_folder(folder)
    return sealed


def write_marker(folder: Path, name: str, text: str) -> None:
    """Publishes: the checkpoint doesn't exist before the rename, and is complete after it."""
    draft = folder / f"{name}.part"
    draft.unlink(missing_ok=True)
    _write_file(draft, b"", memoryview(text.encode()))
    os.rename(draft, folder / name)  # noqa: PTH104 - one call of the kernel, and a test stops at each of them
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Makes the names in a directory durable (fsync(2))."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_file(path: Path, header: bytes, body: memoryview) -> WrittenFile:
    digest = sha256()
    # Always a new file: an existing one may belong to a checkpoint.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        for piece in (memoryview(header), body):
            for at in range(0, len(piece), _BLOCK):
                block = piece[at : at + _BLOCK]
                digest.update(block)
                while block:
                    block = block[os.write(handle, block) :]
        os.fsync(handle)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(handle)
    return WrittenFile(name=path.name, bytes=len(header) + len(body), sha256=digest.hexdigest())
