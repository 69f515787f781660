"""Makes the directories of the user's records and caches, which nobody else may enter or write to."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

# The directory of all our records or caches, in the user's own or in $XDG_STATE_HOME and $XDG_CACHE_HOME.
OWN = "aboard"
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def make_private_folder(path: str | os.PathLike[str]) -> None:
    """Makes it and all that is missing above it, with mode 700: os.makedirs would leave those to the umask.

    One of ours that an earlier umask let others write to is closed for them.
    """
    folder = os.path.abspath(os.fspath(path))
    missing = []
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(each, 0o700)
    folder = os.path.abspath(os.fspath(path))
    if not os.path.isdir(folder):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
    while OWN in folder.split(os.sep):
        close_to_others(folder)
        if os.path.basename(folder) == OWN:
            return
        folder = os.path.dirname(folder)


def replace_file(path: str, content: bytes | memoryview) -> None:
    """Replaces a file, readable only by its owner, at once; not durable."""
    draft = "%s.%d" % (path, os.getpid())
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(content)
    os.rename(draft, path)


def close_to_others(folder: str | os.PathLike[str]) -> None:
    """Takes from others the right to write to a directory, if it is the user's own."""
    status = os.stat(folder)
    if status.st_uid == os.geteuid() and status.st_mode & OTHERS_WRITE:
        os.chmod(folder, stat.S_IMODE(status.st_mode) & ~OTHERS_WRITE)
