"""Whether a file is what its manifest says: by size when it is opened, by hash when it is asked for."""

from pathlib import Path

from aboard.data.store.durable import sha256_of
from aboard.data.store.manifest import FileEntry
from aboard.diagnoses import AboardError, data


def damaged(path: Path, why: str) -> AboardError:
    """What to do is the same for every file of a set: it can always be made again."""
    folder = path if path.is_dir() else path.parent
    return AboardError(data.SHARD_DAMAGED, f"{path}: {why}", folder=folder)


def judge_size(folder: Path, file: FileEntry) -> None:
    try:
        size = (folder / file.name).stat().st_size
    except OSError as error:
        raise damaged(folder / file.name, f"it can't be read ({error.strerror})") from error
    if size != file.bytes:
        raise damaged(folder / file.name, f"it has {size} bytes, and the manifest says {file.bytes}")


def judge_hash(folder: Path, file: FileEntry, sha256: str | None = None) -> None:
    """Reads the file, unless its hash is already known."""
    judge_size(folder, file)
    found = sha256_of(folder / file.name) if sha256 is None else sha256
    if found != file.sha256:
        raise damaged(folder / file.name, f"its sha256 is {found}, and the manifest says {file.sha256}")
