"""The root file system of a host: an overlay over the machine's own."""

import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from aboard.sandbox.namespaces import system_calls

# Devices that programs on a node open; each host has its own /dev, so that it has its own /dev/shm and /dev/pts.
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "kmsg", "fuse")
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
_TTY_GROUP = 5
_DATA_ONLY = system_calls.NO_SUID | system_calls.NO_DEVICES
# Permissions of `others`: to traverse a directory, and to read it too.
_PASS = 0o1
_READ = 0o5
_SYSTEM_TREES = (Path("/"), Path("/usr"), Path("/usr/local"))


def make_disk(disk: Path) -> None:
    """Creates a host's disk; the outer namespace mounts it, so it survives a power loss of the host."""
    disk.mkdir()
    system_calls.mount(disk.name, disk, "tmpfs", options="mode=0755")
    for part in ("upper", "work", "root"):
        (disk / part).mkdir()


def hide_trees(disk: Path, trees: Iterable[Path], *, kept: Iterable[Path]) -> None:
    """Deletes directories of the machine from a host's disk, but none that contains a kept one or is inside it."""
    images = [tree.resolve() for tree in kept]
    needed = {path for image in images for path in (image, *image.parents)}.union(_SYSTEM_TREES)
    for tree in list_outermost(tree for tree in trees if tree.resolve() not in needed):
        if any(tree.is_relative_to(image) for image in images):
            continue
        for parent in tree.parents[-2::-1]:
            copy = disk / "upper" / parent.relative_to("/")
            if not copy.exists():
                # The overlay shows a directory with the mode and owner that its upper layer has.
                copy.mkdir()
                shutil.copystat(parent, copy)
                os.chown(copy, parent.stat().st_uid, parent.stat().st_gid)
        # In an overlay's upper layer, a device 0/0 is a deleted file.
        os.mknod(disk / "upper" / tree.relative_to("/"), stat.S_IFCHR, os.makedev(0, 0))


def enter_root(disk: Path, *, shared: Mapping[Path, Path], trees: Iterable[Path]) -> None:
    """Mounts a host's file system from its disk, with the directories in `shared` by path, and makes it our root."""
    system_calls.mount("none", Path("/"), flags=system_calls.PRIVATE | system_calls.RECURSIVE)
    root = disk / "root"
    layers = f"lowerdir=/,upperdir={disk}/upper,workdir={disk}/work"
    system_calls.mount("overlay", root, "overlay", options=layers)
    for name in ("proc", "sys", "dev", "run", "tmp"):
        (root / name).mkdir(exist_ok=True)
    system_calls.mount("proc", root / "proc", "proc", flags=_DATA_ONLY)
    system_calls.mount("sysfs", root / "sys", "sysfs", flags=_DATA_ONLY)
    system_calls.mount("run", root / "run", "tmpfs", flags=_DATA_ONLY, options="mode=0755")
    system_calls.mount("tmp", root / "tmp", "tmpfs", flags=_DATA_ONLY, options="mode=1777")
    _make_devices(root / "dev")
    for path, directory in shared.items():
        target = root / path.relative_to("/")
        target.mkdir(parents=True, exist_ok=True)
        system_calls.bind_mount(directory, target)
    exposed = list_outermost(trees)
    for directory in _list_private_parents(exposed):
        _hide_content(directory, disk)
    for tree in exposed:
        _expose_tree(tree, disk)
    system_calls.pivot_into(root)


def _make_devices(dev: Path) -> None:
    system_calls.mount("dev", dev, "tmpfs", flags=system_calls.NO_SUID, options="mode=0755")
    for name in _DEVICES:
        original = Path("/dev", name)
        if original.exists():
            about = original.stat()
            os.mknod(dev / name, stat.S_IFCHR | 0o600, about.st_rdev)
            (dev / name).chmod(stat.S_IMODE(about.st_mode))
    for name, target in _LINKS.items():
        (dev / name).symlink_to(target)
    (dev / "pts").mkdir()
    (dev / "shm").mkdir()
    terminals = f"newinstance,ptmxmode=0666,mode=0620,gid={_TTY_GROUP}"
    system_calls.mount("devpts", dev / "pts", "devpts", options=terminals)
    system_calls.mount("shm", dev / "shm", "tmpfs", flags=_DATA_ONLY, options="mode=1777")


def list_outermost(trees: Iterable[Path]) -> list[Path]:
    """The trees that are not inside another one."""
    found = sorted({tree.resolve() for tree in trees})
    return [tree for tree in found if not any(other in tree.parents for other in found)]


def _list_private_parents(trees: Iterable[Path]) -> list[Path]:
    """The outermost directories above these trees that others can't enter, such as root's home."""
    parents = {parent for tree in trees for parent in tree.parents}
    return list_outermost(parent for parent in parents if not parent.stat().st_mode & _PASS)


def _hide_content(directory: Path, disk: Path) -> None:
    """Replaces a private directory by an empty one that others can traverse.

    Opened as it is, it would show each file whose own mode protects nothing: tokens, caches, histories.
    """
    empty = disk / "homes" / directory.relative_to("/")
    empty.mkdir(parents=True, exist_ok=True)
    about = directory.stat()
    os.chown(empty, about.st_uid, about.st_gid)
    empty.chmod(stat.S_IMODE(about.st_mode) | _PASS)
    target = disk / "root" / directory.relative_to("/")
    target.mkdir(parents=True, exist_ok=True)
    system_calls.bind_mount(empty, target)


def _expose_tree(tree: Path, disk: Path) -> None:
    """Gives the host's ordinary user access to a directory of the machine, under the same path.

    A bind mount, because a file that changes in an overlay's lower layer is stale or worse (kernel:
    filesystems/overlayfs.rst, "Changes to underlying filesystems"); it also reaches trees on other file
    systems and below /tmp.
    """
    if tree in _SYSTEM_TREES:
        return
    target = disk / "root" / tree.relative_to("/")
    target.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(tree.stat().st_mode)
    if mode & _READ == _READ:
        system_calls.bind_mount(tree, target, read_only=True)
        return
    # A bind mount would keep the directory's mode; in an overlay we can change it.
    upper, work = (disk / part / tree.relative_to("/") for part in ("tree-upper", "tree-work"))
    for directory in (upper, work):
        directory.mkdir(parents=True, exist_ok=True)
    system_calls.mount("overlay", target, "overlay", options=f"lowerdir={tree},upperdir={upper},workdir={work}")
    target.chmod(mode | _READ)


def make_empty_directory(directory: Path, *, mode: int, owner: tuple[int, int] = (0, 0)) -> None:
    """The machine may have something of this name; the host's directory is new and empty."""
    if directory.is_symlink() or directory.is_file():
        directory.unlink()
    elif directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    directory.chmod(mode)
    os.chown(directory, *owner)
