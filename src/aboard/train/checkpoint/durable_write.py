"""Writing onto a disk so that it stays: hashed on the way, synced, and only then called there."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from aboard.lazy_dataclass import dataclass
from aboard.train.checkpoint.staging_buffers import StagedFile

# Large enough that hashing and writing, which let other threads run, are nearly all of the time.
_BLOCK = 8 << 20
# One hashes while the other waits for the disk.
_WRITERS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenFile:
    """A file that is durable, with what it must read as."""

    name: str
    bytes: int
    sha256: str


def write_files(folder: Path, drafts: Sequence[StagedFile]) -> list[WrittenFile]:
    """All drafts as files, and their names in the folder, durable; the first error ends it."""
    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="checkpoint-write") as pool:
        sealed = list(pool.map(lambda draft: _write_file(folder / draft.name, draft.header, draft.body), drafts))
    sync_folder(folder)
    return sealed


def write_marker(folder: Path, name: str, text: str) -> None:
    """Publishes: before the rename the checkpoint isn't there, after it is whole."""
    draft = folder / f"{name}.part"
    draft.unlink(missing_ok=True)
    _write_file(draft, b"", memoryview(text.encode()))
    os.rename(draft, folder / name)  # noqa: PTH104 - one call of the kernel, and a test stops at each of them
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Names are durable when their directory is (fsync(2))."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_file(path: Path, header: bytes, body: memoryview) -> WrittenFile:
    digest = sha256()
    # A new file, always: what is there already may be a checkpoint's.
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
