"""The directory of a run's supervisor on a node, which only its user can enter."""

from __future__ import annotations

import contextlib
import os
import stat

SOCKET = "keeper.sock"
# A run's record beside its directory: containers can write to that, and this one has commands for the agent.
RECORD_SUFFIX = ".containers"
# Unpacked images of containers: a directory, or a link to one on a disk that the user has chosen for large files.
IMAGES = "images"
# A Unix socket's path is limited to 107 bytes: unix(7).
MAX_RUN_ID_CHARS = 64


class UnsafePlace(OSError):
    """Another user could write to our directory, so we do not use it."""


def make_directory(run: str) -> str:
    """Makes the run's directory; fails if it exists, since the run then has a supervisor."""
    for _ in range(10):
        with contextlib.suppress(FileExistsError):
            os.mkdir(_base_directory(), 0o700)
        # The guard of another run may remove the base meanwhile, since it is empty.
        with contextlib.suppress(FileNotFoundError):
            path = resolve_directory(run)
            os.mkdir(path, 0o700)
            return path
    raise OSError(11, "%s is created and removed repeatedly" % _base_directory())


def resolve_directory(run: str) -> str:
    """The run's directory; its name can't lead out of the base, which no other user can enter."""
    is_plain = all(letter in "-_." or (letter.isascii() and letter.isalnum()) for letter in run)
    if not run or len(run) > MAX_RUN_ID_CHARS or run.startswith(".") or not is_plain:
        raise UnsafePlace(22, "not a run id: %r" % run[:80])
    base = _base_directory()
    status = os.lstat(base)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise UnsafePlace(1, "%s is not a private directory of ours" % base)
    return os.path.join(base, run)


def list_runs() -> list[str]:
    """The runs that have a directory here, with or without a supervisor."""
    with contextlib.suppress(OSError):
        names = os.listdir(os.path.dirname(resolve_directory("any")))
        return sorted(name for name in names if not name.endswith(RECORD_SUFFIX))
    return []


def remove_directory(path: str) -> None:
    """Removes a run's directory, and the base when it was the last one."""
    with contextlib.suppress(OSError):
        elsewhere = os.readlink(os.path.join(path, IMAGES))
        # Ranks can write to the run's directory: remove nothing that can't be ours.
        if os.path.basename(elsewhere).startswith(name_elsewhere(os.path.basename(path))):
            remove_tree(elsewhere)
    remove_tree(path)
    with contextlib.suppress(OSError):
        os.unlink(path + RECORD_SUFFIX)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(path))


def name_elsewhere(run: str) -> str:
    """The first part of the name of a run's directory on another disk."""
    return "aboard-%d-%s." % (os.getuid(), run)


def remove_tree(path: str) -> None:
    """Removes a folder and its content, following no link. Importing shutil would cost each check 15 ms."""
    with contextlib.suppress(OSError):
        mode = os.lstat(path).st_mode
        if not stat.S_ISDIR(mode):
            return
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            # An unpacked image has directories that not even their owner may change.
            os.chmod(path, stat.S_IRWXU)
        for name in os.listdir(path):
            inside = os.path.join(path, name)
            try:
                os.unlink(inside)
            except IsADirectoryError:
                remove_tree(inside)
        os.rmdir(path)


def _base_directory() -> str:
    """The user's own directory. Not XDG_RUNTIME_DIR: logind removes that at logout, and a run outlives its login."""
    return "/tmp/aboard-%d" % os.getuid()  # noqa: S108 - made private, refused if it isn't ours
