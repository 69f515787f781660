"""Removes the temporary directories that multiprocessing makes, and that a killed rank can't remove itself."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable

from aboard.agent.run_directory import SOCKET

_PREFIX = "pymp-"
_LISTENER = "listener-"
_SOCKETS = "/proc/net/unix"


def remove_dead_directories(directory: str, places: Iterable[str] | None = None) -> None:
    """Removes this user's that changed since the run began and whose sockets nobody has open any more.

    `directory` is the run's; its socket is as old as the run. A directory with anything but such sockets is left alone.
    """
    with contextlib.suppress(OSError):
        since = os.stat(os.path.join(directory, SOCKET)).st_ctime
        found = [
            os.path.join(place, name)
            for place in sorted({"/tmp", os.environ.get("TMPDIR") or "/tmp"} if places is None else places)  # noqa: S108 - where multiprocessing makes them
            for name in os.listdir(place)
            if name.startswith(_PREFIX)
        ]
        candidates = [path for path in found if _may_be_dead(path, since)]
        if candidates:
            used = _list_bound_sockets()
            for path in candidates:
                _remove_sockets(path, used)


def _may_be_dead(path: str, since: float) -> bool:
    with contextlib.suppress(OSError):
        about = os.lstat(path)
        return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and about.st_ctime >= since
    return False


def _list_bound_sockets() -> set[str]:
    """The paths of all sockets that a process has bound."""
    with open(_SOCKETS, encoding="utf-8", errors="surrogateescape") as file:
        return {line.rstrip("\n").partition("/")[2] for line in file if "/" in line}


def _remove_sockets(path: str, used: set[str]) -> None:
    with contextlib.suppress(OSError):
        names = os.listdir(path)
        # One without a socket may have been made by a process that is about to bind its first.
        if not names or any(not _is_dead_socket(os.path.join(path, name), used) for name in names):
            return
        for name in names:
            os.unlink(os.path.join(path, name))
        os.rmdir(path)


def _is_dead_socket(path: str, used: set[str]) -> bool:
    named = os.path.basename(path).startswith(_LISTENER)
    return named and stat.S_ISSOCK(os.lstat(path).st_mode) and path.lstrip("/") not in used
