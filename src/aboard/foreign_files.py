"""Reads files that somebody else may have put there, such as those of a clone or of a downloaded model.

What has the name of a small text file may be a link to a secret, a pipe that never ends, a device or a terabyte.
"""

import errno
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses import AboardError
from aboard.diagnoses.files import file_sync
from aboard.diagnoses.untrusted import escape_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# Of a JSON file of a model; the largest index of weights has 10 MB.
MOST_JSON = 32 * 1024 * 1024
# Of the list of slices in a checkpoint of thousands of ranks.
MOST_MARKER = 512 * 1024 * 1024
# Links included; a circle of links ends here.
_MOST_STEPS = 1000
_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class ForeignFileError(OSError):
    """`strerror` says why the file is not read, without a byte of what is in it."""

    def __str__(self) -> str:
        return str(self.strerror)


def read_foreign_file(path: "str | os.PathLike[str]", most: int, *, in_model: bool = False) -> bytes:
    """The content of a regular file in its directory; raises if it has more than `most` bytes."""
    with open_foreign_file(path, in_model=in_model) as file:
        content = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    if content is None or len(content) > most:
        raise ForeignFileError(errno.EFBIG, f"it is larger than {format_size(most)}")
    return content


def open_foreign_file(path: "str | os.PathLike[str]", *, in_model: bool = False) -> BinaryIO:
    """Opens a regular file for bytes without ever waiting; a link must stay in the directory, or in the Hub's cache."""
    target = find_link_target(path, in_model=in_model)
    # Before opening: that wakes whoever writes to a pipe.
    require_regular_file(os.lstat(target))
    handle = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(handle, "rb")
    try:
        require_regular_file(os.fstat(handle))
    except OSError:
        file.close()
        raise
    return file


def find_link_target(path: "str | os.PathLike[str]", *, in_model: bool = False) -> str:
    """The file itself, behind links that stay in its directory.

    Users assemble a model from links to files of the same names, and the Hub's cache consists of links.
    """
    target = os.path.realpath(path)
    folder = os.path.realpath(os.path.dirname(path) or ".")  # noqa: PTH120 - pathlib is slow to import
    place, name = os.path.split(target)
    inside = os.path.commonpath([folder, target]) == folder
    same = name == os.path.basename(path)  # noqa: PTH119 - as above
    cached = place.endswith("/blobs") and folder.startswith(f"{place.removesuffix('blobs')}snapshots/")
    if inside or (in_model and (same or cached)):
        return target
    raise ForeignFileError(errno.ELOOP, f"it is a link to {escape_text(target, 200)}, outside of its directory")


def require_regular_file(status: os.stat_result) -> None:
    """Raises for what may block whoever opens it, or never end."""
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory")
    if not stat.S_ISREG(status.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "a link")
        raise ForeignFileError(errno.EINVAL, f"it is {kind}, not a regular file")


def follow_links(path: "Path", within: "Path | None" = None) -> "Iterator[Path]":
    """The steps from `/` to where an absolute path leads; `within` a directory, only links in it are followed."""
    # Not of the path itself, which may begin with `//`.
    at = top = type(path)("/")
    pending = [*reversed(path.parts[1:])]
    for _ in range(_MOST_STEPS):
        yield at
        if not pending:
            return
        part = pending.pop()
        at = at.parent if part == ".." else at / part
        if part != ".." and (within is None or at.is_relative_to(within)) and at.is_symlink():
            # Joined to an absolute target, the directory no longer counts.
            pending, at = [*pending, *reversed((at.parent / at.readlink()).parts[1:])], top
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def refuse_outside_link(path: "Path", folders: "Iterable[Path]") -> None:
    """Raises for a link to a file that is in none of these directories and in no Hugging Face cache.

    A directory in the working directory may have links to all of that: git-annex and DVC make them.
    """
    real, allowed = path.resolve(), [folder.resolve() for folder in folders]
    blobs = real.parent
    is_cached = blobs.name == "blobs" and blobs.parent.name.startswith(("models--", "datasets--"))
    if is_cached or any(real.is_relative_to(folder) for folder in allowed):
        return
    here = path.cwd()
    if real.is_relative_to(here) and path.is_relative_to(here):
        return
    seen = f"{escape_text(str(path), 300)} is a link to {escape_text(str(real), 300)}, which is outside of"
    raise AboardError(file_sync.LINK_OUT, f"{seen} {escape_text(str(allowed[0]), 300)}", path=path, target=real)
