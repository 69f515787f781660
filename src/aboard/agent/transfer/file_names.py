"""Which names a file receiver accepts, those that only Aboard uses, and the sizes of files by name."""

from __future__ import annotations

import errno
import os
import stat

from aboard.agent import frames

# Partial files, temporary files, and marks that show which nodes share a disk.
OWN_PREFIX = ".aboard-"
NAME_BYTES = 255


class BadName(ValueError):
    """A name that could lead out of its directory."""


def validate_file_name(name: object, *, ours: bool = False) -> str:
    """Accepts only a plain file name."""
    if (
        not isinstance(name, str)
        or name in ("", ".", "..")
        or "/" in name
        or "\0" in name
        or len(os.fsencode(name)) > NAME_BYTES
        or (name.startswith(OWN_PREFIX) and not ours)
    ):
        raise BadName("%r is no plain name of a file" % (name,))
    return name


def describe_failure(error: OSError, folder: str = "") -> frames.Message:
    """The reply to a request that failed, with the full path as far as it is known."""
    path = os.path.join(folder, error.filename) if isinstance(error.filename, str) else folder
    name = errno.errorcode.get(error.errno or 0, "")
    return {"failed": {"errno": name, "why": error.strerror or str(error), "path": path}}


def read_file_size(folder: int, name: str, *, follow: bool = False) -> int:
    """The size of a regular file; -1 for anything else."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=follow)
    except OSError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1
