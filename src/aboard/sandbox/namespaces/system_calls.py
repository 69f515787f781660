"""The few system calls that Python 3.11 does not wrap (os.unshare and os.setns came with 3.12)."""

import ctypes
import os

NEW_MOUNT = 0x00020000
NEW_UTS = 0x04000000
NEW_IPC = 0x08000000
NEW_PID = 0x20000000
NEW_NET = 0x40000000
ALL_NAMESPACES = NEW_MOUNT | NEW_UTS | NEW_IPC | NEW_PID | NEW_NET

READ_ONLY = 0x1
NO_SUID = 0x2
NO_DEVICES = 0x4
REMOUNT = 0x20
BIND = 0x1000
RECURSIVE = 0x4000
PRIVATE = 0x40000
SLAVE = 0x80000

_DETACH = 0x2
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}

_libc = ctypes.CDLL(None, use_errno=True)


def unshare_namespaces(namespaces: int) -> None:
    """Moves this process (for PID: its children) into new namespaces."""
    _check_result(_libc.unshare(namespaces), "unshare")


def set_namespaces(pidfd: int, namespaces: int) -> None:
    """Moves this process (for PID: its children) into the namespaces of another, all of them or none."""
    _check_result(_libc.setns(pidfd, namespaces), "setns")


def mount(source: str, target: str | os.PathLike[str], kind: str = "", *, flags: int = 0, options: str = "") -> None:
    """Mounts a file system, or changes a mount; the flags are those of the system call."""
    result = _libc.mount(source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _check_result(result, f"mount {kind or source} on {target}")


def bind_mount(source: str | os.PathLike[str], target: str | os.PathLike[str], *, read_only: bool = False) -> None:
    """Mounts a directory or file of this mount namespace at a second path."""
    mount(str(source), target, flags=BIND)
    if read_only:
        # A bind ignores READ_ONLY until it is remounted: mount(2), "Creating a bind mount".
        mount("none", target, flags=BIND | REMOUNT | READ_ONLY)


def pivot_into(root: str | os.PathLike[str]) -> None:
    """Makes a mounted directory the root and detaches the old one: pivot_root(2), `pivot_root(".", ".")`."""
    os.chdir(root)
    number = _SYS_PIVOT_ROOT[os.uname().machine]
    _check_result(_libc.syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    _check_result(_libc.umount2(b".", _DETACH), "umount the old root")
    os.chdir("/")


def set_hostname(name: str) -> None:
    """Sets the host name of this UTS namespace."""
    raw = name.encode()
    _check_result(_libc.sethostname(raw, ctypes.c_size_t(len(raw))), "sethostname")


def _check_result(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
