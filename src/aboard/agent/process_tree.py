"""Finds and terminates a run's processes by parent, run id and mark, from /proc; never by a name pattern."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable

RUN_ID = "ABOARD_RUN_ID"
# num_threads and starttime in /proc/PID/stat, counted from the state behind the name: proc(5).
THREADS = 17
START_TIME = 19
# RLIMIT_LOCKS, which no kernel since Linux 2.4.25 enforces: getrlimit(2). Its soft limit is inherited through fork,
# exec and setsid like an environment, and readable in /proc/PID/limits, but a program that starts another with an empty
# environment doesn't touch it.
LOCKS = 10
MARK_LINE = b"Max file locks"
# The upper 15 bits of a mark; no one sets such a limit by accident.
MARK_PREFIX = 0x7AB0
MARK_BITS = 48


def compute_mark(run: str) -> int:
    """The value of the limit that marks a run's processes."""
    # FNV-1a: importing hashlib would cost each node 5 ms, and a collision costs no more than a wrong name.
    value: int = 0xCBF29CE484222325
    for byte in run.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return (MARK_PREFIX << MARK_BITS) + (value ^ value >> MARK_BITS) % (1 << MARK_BITS)


def mark_process(run: str) -> None:
    """Marks this process and all that it will start as the run's."""
    import resource  # noqa: PLC0415 - only a rank's own process needs it

    # Without a mark a rank is still found by parent and run id.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(LOCKS, (compute_mark(run), resource.getrlimit(LOCKS)[1]))


def read_mark(pid: int) -> int:
    """The mark of a process that we may kill; 0 if it has none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # Most processes of a shared node belong to others. One that is not dumpable seems to be root's: proc(5).
        if os.getuid() and os.stat("/proc/%d" % pid).st_uid not in (os.getuid(), 0):
            return 0
        with open("/proc/%d/limits" % pid, "rb") as limits:
            value = limits.read().partition(MARK_LINE)[2].split(None, 1)[0]
        # Another user who copies our mark must not make us wait for a process that we can't kill.
        if value.isdigit() and int(value) >> MARK_BITS == MARK_PREFIX and os.getuid() in (0, _read_user(pid)):
            return int(value)
    return 0


def _read_user(pid: int) -> int:
    """The real user id."""
    with open("/proc/%d/status" % pid, "rb") as status:
        return int(status.read().partition(b"\nUid:")[2].split(None, 1)[0])


def read_parents() -> dict[int, int]:
    """Every process and its parent; a process that exits meanwhile is left out."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _read_stat(int(name))
            if fields and _is_alive(fields):
                table[int(name)] = int(fields[1])
    return table


def list_descendants(root: int) -> set[int]:
    """Everything below root. A subreaper keeps double forks and new sessions below it: prctl(2)."""
    table = read_parents()
    children: dict[int, list[int]] = {}
    for pid, parent in table.items():
        children.setdefault(parent, []).append(pid)
    pids: set[int] = set()
    waiting = [root]
    while waiting:
        for pid in children.get(waiting.pop(), ()):
            if pid not in pids:
                pids.add(pid)
                waiting.append(pid)
    return pids


def find_run_processes(run: str) -> set[int]:
    """Processes of this user that carry the run's id in their environment, or its mark, whoever their parent is."""
    variable, mark = ("%s=%s" % (RUN_ID, run)).encode(), compute_mark(run)
    pids = set()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            environment = b""
            with contextlib.suppress(OSError), open("/proc/%s/environ" % name, "rb") as environ:
                environment = environ.read()
            # A zombie has neither an environment nor anything left to kill, but still its limits.
            if variable in environment.split(b"\0") or (read_mark(int(name)) == mark and read_state(int(name))):
                pids.add(int(name))
    return pids


def read_state(pid: int) -> str:
    """R, S, D, T and so on: proc(5); "" for a process that is gone or a zombie without threads."""
    fields = _read_stat(pid)
    return fields[0].decode() if fields and _is_alive(fields) else ""


def read_start_time(pid: int) -> int:
    """When the process started, in ticks; together with its pid it names one process for good."""
    fields = _read_stat(pid)
    return int(fields[START_TIME]) if fields else 0


def continue_stopped(pid: int, started: int) -> bool:
    """Sends SIGCONT to a process that a signal has stopped; a process held by a debugger (state t) is left alone."""
    if pid <= 0 or read_state(pid) != "T" or read_start_time(pid) != started:
        return False
    send_signal([pid], signal.SIGCONT)
    return True


def _read_stat(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError), open("/proc/%d/stat" % pid, "rb") as stat:
        # The name in parentheses may contain anything, including spaces and parentheses: proc(5).
        return stat.read().rpartition(b")")[2].split()
    return []


def _is_alive(fields: list[bytes]) -> bool:
    # A zombie with threads left is alive: its first thread has called pthread_exit(3), the others run.
    return fields[0] not in (b"Z", b"X") or int(fields[THREADS]) > 1


def send_signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_run(
    run: str, seconds: float, reap: Callable[[], object], spared: Iterable[int] = ()
) -> tuple[set[int], set[int]]:
    """Kills all that is below us or carries the run's id or mark; returns what it killed and what would not die.

    `spared` are children of ours that don't belong to the run.
    """
    deadline = time.monotonic() + seconds
    killed: set[int] = set()
    while True:
        below = list_descendants(os.getpid())
        for pid in spared:
            below -= {pid, *list_descendants(pid)}
        left = below | find_run_processes(run)
        if not left or time.monotonic() > deadline:
            return killed - left, left
        killed |= left
        send_signal(left, signal.SIGKILL)
        reap()
        # The kernel needs a moment to remove a killed process; this is the agent's only blocking wait.
        time.sleep(0.01)


def reap_children() -> list[tuple[int, int]]:
    """Reaps every child that has exited: (pid, exit code)."""
    exits = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            exits.append((pid, os.waitstatus_to_exitcode(status)))
    return exits
