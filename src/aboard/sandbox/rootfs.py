"""The file system of a host: the machine's own as the lower layer, everything that is written apart."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from aboard.sandbox import kernel

# Devices that programs on a node open; /dev itself is the host's own, so that /dev/shm and /dev/pts are.
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "kmsg", "fuse")
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
_TTY_GROUP = 5
# What `others` need: to pass through a directory, and to read it too.
_PASS = 0o1
_READ = 0o5
_SYSTEM_TREES = (Path("/"), Path("/usr"), Path("/usr/local"))


def make_disk(disk: Path) -> None:
    """A host's disk; it is the hull's mount, so it outlives the host's power."""
    disk.mkdir()
    kernel.mount(disk.name, disk, "tmpfs", options="mode=0755")
    for part in ("upper", "work", "root"):
        (disk / part).mkdir()


def enter_root(disk: Path, *, shared: Path, trees: Iterable[Path]) -> None:
    """Mount a host's file system from its disk and make it this process's root."""
    kernel.mount("none", Path("/"), flags=kernel.PRIVATE | kernel.RECURSIVE)
    root = disk / "root"
    layers = f"lowerdir=/,upperdir={disk}/upper,workdir={disk}/work"
    kernel.mount("overlay", root, "overlay", options=layers)
    for name in ("proc", "sys", "dev", "run", "tmp", "shared"):
        (root / name).mkdir(exist_ok=True)
    kernel.mount("proc", root / "proc", "proc", flags=kernel.NO_SUID | kernel.NO_DEVICES)
    kernel.mount("sysfs", root / "sys", "sysfs", flags=kernel.NO_SUID | kernel.NO_DEVICES)
    kernel.mount("run", root / "run", "tmpfs", flags=kernel.NO_SUID | kernel.NO_DEVICES, options="mode=0755")
    kernel.mount("tmp", root / "tmp", "tmpfs", flags=kernel.NO_SUID | kernel.NO_DEVICES, options="mode=1777")
    _make_devices(root / "dev")
    kernel.bind(shared, root / "shared")
    for tree in _outermost(trees):
        _show(tree, root)
    kernel.pivot_into(root)


def _make_devices(dev: Path) -> None:
    kernel.mount("dev", dev, "tmpfs", flags=kernel.NO_SUID, options="mode=0755")
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
    kernel.mount("devpts", dev / "pts", "devpts", options=terminals)
    kernel.mount("shm", dev / "shm", "tmpfs", flags=kernel.NO_SUID | kernel.NO_DEVICES, options="mode=1777")


def _outermost(trees: Iterable[Path]) -> list[Path]:
    """The trees without those that lie within another one."""
    found = sorted({tree.resolve() for tree in trees})
    return [tree for tree in found if not any(other in tree.parents for other in found)]


def _show(tree: Path, root: Path) -> None:
    """Let an ordinary user reach a tree of the machine, at its own place.

    A bind mount, because a file that changes in an overlay's lower layer is stale or worse (kernel:
    filesystems/overlayfs.rst, "Changes to underlying filesystems"); it also reaches trees on other file
    systems and below /tmp.
    """
    _open_up(tree.parents, root, _PASS)
    if tree in _SYSTEM_TREES:
        return
    target = root / tree.relative_to("/")
    if stat.S_IMODE(tree.stat().st_mode) & _READ != _READ:
        # The bind would show this closed door as it is; in the overlay it can be opened.
        _open_up([tree], root, _READ)
        return
    target.mkdir(parents=True, exist_ok=True)
    kernel.bind(tree, target, read_only=True)


def _open_up(directories: Iterable[Path], root: Path, wanted: int) -> None:
    for directory in directories:
        inside = root / directory.relative_to("/")
        if inside.exists():
            mode = stat.S_IMODE(inside.stat().st_mode)
            if mode & wanted != wanted:
                inside.chmod(mode | wanted)
