"""Opens the directory that a transfer writes to, one component at a time: no link of a user is followed on the way.

An earlier transfer, or a cloned repository, may have brought such a link, and it may lead to the user's keys. Links in
`/` and those that root made for users are the machine's layout; links above the home directory are followed too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

# Behind it, not even links of root are followed: `~/project//data` is `data` of the tree `~/project`.
TREE_SEPARATOR = "//"
# They hold no files of anybody, and `/proc/self/cwd` is another directory for each process.
SYSTEM_FOLDERS = ("/proc", "/dev", "/sys")
_MOST_LINKS = 40
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_folder(path: str, *, make: bool = False) -> int:
    """Opens a directory; `make` creates what is missing of it."""
    fd, _nearest, missing = _walk(path, make=make)
    if missing:
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    return fd


def open_nearest_folder(path: str) -> tuple[int, str, bool]:
    """Opens a directory or its closest existing ancestor: the descriptor, its path, and whether it is an ancestor."""
    return _walk(path, make=False)


def refuse_system_folder(path: str) -> None:
    """Raises for a path in /proc, /dev or /sys, also if a link leads there."""
    for each in (os.path.normpath(path), os.path.realpath(path)):
        if "/" + each.lstrip("/").partition("/")[0] in SYSTEM_FOLDERS:
            raise PermissionError(errno.EPERM, "Aboard copies nothing to or from /proc, /dev and /sys", each)


def _walk(path: str, *, make: bool) -> tuple[int, str, bool]:
    outer, _, inner = path.partition(TREE_SEPARATOR)
    home = os.path.expanduser("~").rstrip("/") or "/"
    at = home if os.path.isabs(home) and (outer + "/").startswith(home.rstrip("/") + "/") else "/"
    pending = [(name, True) for name in reversed(inner.split("/")) if name]
    pending += [(name, False) for name in reversed(outer[len(at) :].split("/")) if name]
    fd = os.open(at, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    links, place = 0, at
    try:
        while pending:
            name, strict = pending.pop()
            place = os.path.normpath(os.path.join(at, name))
            is_top = os.path.samestat(os.fstat(fd), os.stat("/"))
            if is_top:
                refuse_system_folder("/" + name)
            try:
                found = _open_entry(fd, name)
            except FileNotFoundError:
                if not make:
                    return fd, at, True
                with contextlib.suppress(FileExistsError):
                    # ~/.cache and ~/.local, as the XDG specification requires; others as the umask says.
                    os.mkdir(name, 0o700 if name.startswith(".") else 0o777, dir_fd=fd)
                found = _open_entry(fd, name)
            target = _read_link(found, is_top=is_top, strict=strict or links == _MOST_LINKS)
            if target:
                links += 1
                pending += [(part, False) for part in reversed(target.split("/")) if part]
                if not target.startswith("/"):
                    continue
                found, place = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), "/"
            os.close(fd)
            fd, at = found, place
        # A directory on the way may be one that we can't read; the last one has to be opened for real.
        found = os.open(".", _DIRECTORY, dir_fd=fd)
    except OSError as error:
        os.close(fd)
        error.filename = place
        raise
    os.close(fd)
    return found, at, False


def _open_entry(folder: int, name: str) -> int:
    """Opens a directory, or the link or file in its place. Only a real attempt to open one mounts it on demand."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.ENOTDIR, errno.ELOOP):
            raise
    return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)


def _read_link(found: int, *, is_top: bool, strict: bool) -> str:
    """Where a link leads, which is then closed; "" for a directory. Raises for what must not be followed."""
    status = os.fstat(found)
    if stat.S_ISDIR(status.st_mode):
        return ""
    try:
        if not stat.S_ISLNK(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        target = os.readlink("", dir_fd=found)
        if strict or not (is_top or (status.st_uid == 0 and os.geteuid() != 0)):
            raise OSError(errno.ELOOP, "it is a symbolic link to %s" % target)
        return target
    finally:
        os.close(found)
