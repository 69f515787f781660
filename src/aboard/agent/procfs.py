"""Reads the files of processes in /proc; what is gone or belongs to somebody else is empty."""

from __future__ import annotations

import contextlib
import os
import pwd

# In /proc/PID/stat, counted from the state behind the name: proc(5).
STATE, PARENT, USER, SYSTEM, THREADS, START_TIME, PAGES = 0, 1, 11, 12, 17, 19, 21
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
CHUNK = 65536
ENVIRON_LIMIT = 4 * 1024 * 1024


def read_kernel_file(path: str, most: int = CHUNK) -> bytes:
    """A whole /proc file, which the kernel returns a page at a time."""
    content = b""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while part := os.read(fd, min(CHUNK, most - len(content))):
                content += part
        finally:
            os.close(fd)
    return content


def read_stat(pid: int) -> list[bytes]:
    """The fields after the name, which may contain anything, including spaces and parentheses: proc(5)."""
    return read_kernel_file("/proc/%d/stat" % pid, 4096).rpartition(b")")[2].split()


def read_environ(pid: int) -> bytes:
    """Its environment as it was when it started: NAME=VALUE, each followed by a zero."""
    return read_kernel_file("/proc/%d/environ" % pid, ENVIRON_LIMIT)


def parse_environ(raw: bytes) -> dict[bytes, bytes]:
    return {name: value for name, _, value in (entry.partition(b"=") for entry in raw.split(b"\0"))}


def read_command_line(pid: int) -> list[str]:
    return [word.decode("utf-8", "replace") for word in read_kernel_file("/proc/%d/cmdline" % pid).split(b"\0")[:-1]]


def read_name(pid: int) -> str:
    return read_kernel_file("/proc/%d/comm" % pid, 64).decode("utf-8", "replace").strip()


def read_owner(pid: int) -> int:
    """The user that runs it; -1 if it is gone."""
    with contextlib.suppress(OSError):
        return os.stat("/proc/%d" % pid).st_uid
    return -1


def read_namespace(pid: int, kind: str) -> int:
    """The number of its namespace of this kind; 0 if it can't be read."""
    with contextlib.suppress(OSError):
        return os.stat("/proc/%d/ns/%s" % (pid, kind)).st_ino
    return 0


def read_link(path: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""


def resolve_user(uid: int) -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def list_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]
