"""Compares files with their manifest: by size when opened, by hash on request."""

from pathlib import Path

from aboard.diagnoses import AboardError
from aboard.diagnoses.files import local_files
from aboard.durable_files import FileEntry, compute_sha256


def make_damage_error(path: Path, why: str) -> AboardError:
    """The fix is the same for every file of a set: it can always be prepared again."""
    folder = path if path.is_dir() else path.parent
    return AboardError(local_files.SHARD_DAMAGED, f"{path}: {why}", folder=folder)


def check_file_size(folder: Path, file: FileEntry) -> None:
    try:
        size = (folder / file.name).stat().st_size
    except OSError as error:
        raise make_damage_error(folder / file.name, f"it can't be read ({error.strerror})") from error
    if size != file.bytes:
        raise make_damage_error(folder / file.name, f"it has {size} bytes, but the manifest says {file.bytes}")


def check_file_hash(folder: Path, file: FileEntry, sha256: str | None = None) -> None:
    """Hashes the file, unless its hash is already known."""
    check_file_size(folder, file)
    actual = compute_sha256(folder / file.name) if sha256 is None else sha256
    if actual != file.sha256:
        raise make_damage_error(folder / file.name, f"its sha256 is {actual}, but the manifest says {file.sha256}")
