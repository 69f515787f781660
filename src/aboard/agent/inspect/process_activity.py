"""What a process is doing, from /proc: running, waiting (for what), stopped; sampled for half a second."""

from __future__ import annotations

import contextlib
import os
import time

from aboard.agent import procfs

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# A process that hangs has the same state in all samples; one that works shows several.
SAMPLES = 8
MOST_TASKS = 64
# Calls that wait for the file behind their first argument, and some that wait for something else; from the kernel's
# tables for x86-64 and for 64-bit Arm. Others are reported by number.
_SYSTEM_CALLS = {
    "x86_64": {
        0: "read", 1: "write", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 74: "fsync", 75: "fdatasync",
        5: "fstat", 8: "lseek", 73: "flock", 217: "getdents64", 3: "close", 45: "recvfrom", 44: "sendto",
        47: "recvmsg", 46: "sendmsg", 42: "connect", 43: "accept", 288: "accept4", 7: "poll", 271: "ppoll",
        23: "select", 270: "pselect6", 232: "epoll_wait", 281: "epoll_pwait", 202: "futex", 230: "clock_nanosleep",
        35: "nanosleep", 61: "wait4", 247: "waitid", 257: "openat", 262: "newfstatat", 4: "stat", 6: "lstat",
        2: "open", 332: "statx", 137: "statfs",
    },
    "aarch64": {
        63: "read", 64: "write", 67: "pread64", 68: "pwrite64", 65: "readv", 66: "writev", 82: "fsync",
        83: "fdatasync", 80: "fstat", 62: "lseek", 32: "flock", 61: "getdents64", 57: "close", 207: "recvfrom",
        206: "sendto", 212: "recvmsg", 211: "sendmsg", 203: "connect", 202: "accept", 242: "accept4", 73: "ppoll",
        72: "pselect6", 22: "epoll_pwait", 98: "futex", 115: "clock_nanosleep", 101: "nanosleep", 260: "wait4",
        95: "waitid", 56: "openat", 79: "newfstatat", 291: "statx", 43: "statfs",
    },
}  # fmt: skip
FILE_CALLS = frozenset((
    "read", "write", "pread64", "pwrite64", "readv", "writev", "fsync", "fdatasync", "fstat", "lseek", "flock",
    "getdents64", "close", "recvfrom", "sendto", "recvmsg", "sendmsg", "connect", "accept", "accept4",
))  # fmt: skip
# Calls with a path, and the index of that argument.
PATH_CALLS = {"open": 0, "stat": 0, "lstat": 0, "statfs": 0, "openat": 1, "newfstatat": 1, "statx": 1}
MOST_PATH = 256


def sample_processes(pids: Iterable[int], seconds: float) -> dict[int, dict[str, Any]]:
    """Samples each process for `seconds`; one that exits meanwhile is left out."""
    before = {pid: counters for pid in pids for counters in [_ProcessCounters(pid)] if counters.alive}
    began = time.monotonic()
    states = {pid: [counters.state] for pid, counters in before.items()}
    for look in range(1, SAMPLES):
        time.sleep(max(0.0, began + seconds * look / (SAMPLES - 1) - time.monotonic()))
        for pid, letters in states.items():
            letters.append((procfs.read_stat(pid) or [b"X"])[procfs.STATE].decode("ascii", "replace"))
    elapsed = max(1e-3, time.monotonic() - began)
    activity = {}
    for pid, first in before.items():
        last = _ProcessCounters(pid)
        if last.alive:
            activity[pid] = _describe_process(pid, first, last, elapsed)
            activity[pid]["states"] = "".join(states[pid])
    return activity


class _ProcessCounters:
    """The counters of one process at one time."""

    def __init__(self, pid: int) -> None:
        fields = procfs.read_stat(pid)
        self.alive = len(fields) > procfs.PAGES
        if self.alive:
            self.state = fields[procfs.STATE].decode("ascii", "replace")
            self.threads = int(fields[procfs.THREADS])
            self.rss = int(fields[procfs.PAGES]) * procfs.PAGE
            self.used = (int(fields[procfs.USER]) + int(fields[procfs.SYSTEM])) / procfs.TICKS
            self.delayed = _read_run_delay(pid)


def _read_run_delay(pid: int) -> float:
    """Seconds in which a thread of it was runnable but had no core, as counted by the scheduler."""
    total = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for task in os.listdir("/proc/%d/task" % pid)[:MOST_TASKS]:
            total += int(procfs.read_kernel_file("/proc/%d/task/%s/schedstat" % (pid, task)).split()[1])
    return total / 1e9


def _describe_process(pid: int, first: _ProcessCounters, last: _ProcessCounters, elapsed: float) -> dict[str, Any]:
    call, file = _read_system_call(pid)
    return {
        "pid": pid,
        "name": procfs.read_name(pid),
        "state": last.state,
        "wchan": procfs.read_kernel_file("/proc/%d/wchan" % pid, 128).decode("ascii", "replace"),
        "call": call,
        "file": file,
        "cpu": round((last.used - first.used) / elapsed, 3),
        "delay": round((last.delayed - first.delayed) / elapsed, 3),
        "threads": last.threads,
        "rss": last.rss,
    }


def _read_system_call(pid: int) -> tuple[str, str]:
    """The system call in which its first thread waits, and the file behind it; empty where neither is known."""
    words = procfs.read_kernel_file("/proc/%d/syscall" % pid, 256).split()
    if len(words) < 2 or not words[0].isdigit():  # noqa: PLR2004 - a number and its arguments
        return "", ""
    number = int(words[0])
    name = _SYSTEM_CALLS.get(os.uname().machine, {}).get(number, "call %d" % number)
    if name in PATH_CALLS:
        return name, _read_path_argument(pid, int(words[1 + PATH_CALLS[name]], 16))
    if name not in FILE_CALLS:
        return name, ""
    with contextlib.suppress(OSError, ValueError):
        return name, os.readlink("/proc/%d/fd/%d" % (pid, int(words[1], 16)))[:400]
    return name, ""


def _read_path_argument(pid: int, pointer: int) -> str:
    """The path argument, read from its memory: its supervisor is an ancestor and may do so (ptrace(2))."""
    with (
        contextlib.suppress(OSError, ValueError, OverflowError),
        open("/proc/%d/mem" % pid, "rb", buffering=0) as memory,
    ):
        memory.seek(pointer)
        # Not beyond its first page: the next one may not be mapped.
        most = min(MOST_PATH, procfs.PAGE - pointer % procfs.PAGE)
        return (memory.read(most) or b"").partition(b"\0")[0].decode("utf-8", "replace")
    return ""
