"""The directory of a run's supervisor on a node, which only its user can enter."""

from __future__ import annotations

import contextlib
import os
import stat

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from typing import Any

SOCKET = "supervisor.sock"
# A run's record beside its directory: containers can write to that, and this one has commands for the agent.
RECORD_SUFFIX = ".containers"
# Unpacked images of containers: a directory, or a link to one on a disk that the user has chosen for large files.
IMAGES = "images"
# A Unix socket's path is limited to 107 bytes: unix(7).
MAX_RUN_ID_CHARS = 64


class UnsafePlace(OSError):
    """A name that could lead out of our directory."""


def make_directory(run: str) -> str:
    """Makes the run's directory; fails if it exists, since the run then has a supervisor."""
    for _ in range(10):
        # The guard of another run may remove the base meanwhile, since it is empty.
        with contextlib.suppress(FileNotFoundError):
            base = _make_base()
            path = os.path.join(base, _check_run_id(run))
            if os.path.lexists(resolve_directory(run)):
                raise FileExistsError(17, "run %s has a directory" % run)
            os.mkdir(path, 0o700)
            # Once it is ours and has an entry, nobody can replace it; before, another user could.
            if _is_private(base) and _is_private(path):
                return path
    raise OSError(11, "%s is created and removed repeatedly" % _base_directory())


def resolve_directory(run: str) -> str:
    """The run's directory; its name can't lead out of the base, which no other user can enter."""
    name = _check_run_id(run)
    bases = _list_bases()
    if not bases:
        raise FileNotFoundError(2, "no run has a directory")
    paths = [os.path.join(base, name) for base in bases]
    return next((path for path in paths if os.path.lexists(path)), paths[0])


def list_runs() -> list[str]:
    """The runs that have a directory here, with or without a supervisor."""
    names: list[str] = []
    for base in _list_bases():
        with contextlib.suppress(OSError):
            names += os.listdir(base)
    return sorted(name for name in names if not name.endswith(RECORD_SUFFIX))


def describe_intruder() -> dict[str, Any] | None:
    """Who owns the usual base, if it isn't private and ours."""
    base = _base_directory()
    with contextlib.suppress(OSError):
        status = os.lstat(base)
        if not _is_private(base):
            return {"path": base, "uid": status.st_uid, "mode": stat.filemode(status.st_mode)}
    return None


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


def _check_run_id(run: str) -> str:
    is_plain = all(letter in "-_." or (letter.isascii() and letter.isalnum()) for letter in run)
    if not run or len(run) > MAX_RUN_ID_CHARS or run.startswith(".") or not is_plain:
        raise UnsafePlace(22, "not a run id: %r" % run[:80])
    return run


def _make_base() -> str:
    """The usual base, or one whose name nobody can take before us."""
    base = _base_directory()
    with contextlib.suppress(FileExistsError):
        os.mkdir(base, 0o700)
    bases = _list_bases()
    while not bases:
        # Not in the user's home: it may be shared by nodes, and too long for the path of a socket.
        with contextlib.suppress(FileExistsError):
            other = "%s.%s" % (base, os.urandom(3).hex())
            os.mkdir(other, 0o700)
            bases = [other]
    return bases[0]


def _list_bases() -> list[str]:
    """The user's private bases that exist, the usual one first."""
    base = _base_directory()
    folder, name = os.path.split(base)
    others: list[str] = []
    # Some administrators make /tmp unlistable.
    with contextlib.suppress(OSError):
        others = sorted(other for other in os.listdir(folder) if other.startswith(name + "."))
    return [path for path in (base, *(os.path.join(folder, other) for other in others)) if _is_private(path)]


def _is_private(path: str) -> bool:
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        return (
            stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
        )
    return False


def _base_directory() -> str:
    """The user's own directory. Not XDG_RUNTIME_DIR: logind removes that at logout, and a run outlives its login."""
    return "/tmp/aboard-%d" % os.getuid()  # noqa: S108 - made private, not used if it isn't ours
