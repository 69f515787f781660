"""Caches the hash of a file's content for as long as the file is unchanged."""

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import time_ns

from aboard.agent.private_folders import make_private_folder
from aboard.core.decoding import parse_json
from aboard.diagnoses import AboardError
from aboard.diagnoses.files import local_files
from aboard.durable_files import compute_sha256, hold_lock, write_atomically
from aboard.lazy_dataclass import dataclass

# A file written this recently can change again within the same time stamp (git's "racy" entries).
_SETTLED_NANOSECONDS = 2_000_000_000
_PATIENCE = 60.0
_MAX_ENTRIES = 100_000


# The state of a file on disk: size, times, inode.
FileStamp = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ContentHash:
    """The content of a file, whatever its name; `stamp` is its state on disk when it was read."""

    bytes: int
    sha256: str
    stamp: FileStamp


class ContentHashCache:
    """Hashes by path, size, times and inode, stored in one cache file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = _load_hashes(path)
        self._new: dict[str, list[int | str]] = {}

    def of(self, paths: Iterable[Path], *, threads: int = 1) -> list[ContentHash]:
        """The content hash of each file; changed files are read, several at once."""
        with ThreadPoolExecutor(max_workers=threads) as pool:
            found = list(pool.map(self._one, paths))
        self._save()
        return found

    def _one(self, path: Path) -> ContentHash:
        stamp = read_file_stamp(path)
        known = self._known.get(str(path.absolute()))
        if known is not None and tuple(known[:-1]) == stamp:
            return ContentHash(bytes=stamp[0], sha256=str(known[-1]), stamp=stamp)
        try:
            sha256 = compute_sha256(path)
        except OSError as error:
            raise make_unreadable_error(path, error) from error
        if read_file_stamp(path) != stamp:
            raise make_changed_error(path)
        if time_ns() - max(stamp[1:3]) > _SETTLED_NANOSECONDS:
            self._new[str(path.absolute())] = [*stamp, sha256]
        return ContentHash(bytes=stamp[0], sha256=sha256, stamp=stamp)

    def _save(self) -> None:
        if not self._new:
            return
        make_private_folder(self._path.parent)
        with hold_lock(self._path.with_suffix(".lock"), patience=_PATIENCE):
            # Other processes may have added entries. The oldest are dropped if there are too many.
            self._known = {**_load_hashes(self._path), **self._new}
            self._new.clear()
            latest = dict(list(self._known.items())[-_MAX_ENTRIES:])
            write_atomically(self._path, json.dumps(latest, indent=0), sync=False)


def read_file_stamp(path: Path) -> FileStamp:
    """Size, times and inode; the change time too, since `cp -p` and rsync restore the modification time."""
    try:
        stat = path.stat()
    except OSError as error:
        raise make_unreadable_error(path, error) from error
    return (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


def make_unreadable_error(path: Path, error: OSError) -> AboardError:
    return AboardError(local_files.UNREADABLE, f"{path} can't be read: {error.strerror}", "file", path=path)


def make_changed_error(path: Path) -> AboardError:
    return AboardError(local_files.CHANGED, f"{path} changed while it was being prepared")


def _load_hashes(path: Path) -> dict[str, list[int | str]]:
    """The cached hashes; empty if the file is missing or invalid, so that everything is hashed again."""
    try:
        hashes = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return {name: entry for name, entry in hashes.items() if isinstance(entry, list) and len(entry) == 5}  # noqa: PLR2004 - the stamp and the hash
