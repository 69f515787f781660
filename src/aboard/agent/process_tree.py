"""Finds and terminates a run's processes by parent, run id and mark, from /proc; never by a name pattern."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping

from aboard.agent import procfs

RUN_ID = "ABOARD_RUN_ID"
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
    with contextlib.suppress(ValueError, IndexError):
        # Most processes of a shared node belong to others. One that is not dumpable seems to be root's: proc(5).
        if os.getuid() and procfs.read_owner(pid) not in (os.getuid(), 0):
            return 0
        value = procfs.read_kernel_file("/proc/%d/limits" % pid).partition(MARK_LINE)[2].split(None, 1)[0]
        # Another user who copies our mark must not make us wait for a process that we can't kill.
        if value.isdigit() and int(value) >> MARK_BITS == MARK_PREFIX and os.getuid() in (0, _read_user(pid)):
            return int(value)
    return 0


def _read_user(pid: int) -> int:
    """The real user id."""
    return int(procfs.read_kernel_file("/proc/%d/status" % pid).partition(b"\nUid:")[2].split(None, 1)[0])


def read_parents(*, zombies: bool = False) -> dict[int, int]:
    """Every process and its parent; a process that exits meanwhile is left out, and zombies unless requested."""
    stats = {pid: procfs.read_stat(pid) for pid in procfs.list_pids()}
    known = {pid: fields for pid, fields in stats.items() if fields and (zombies or _is_alive(fields))}
    return {pid: int(fields[procfs.PARENT]) for pid, fields in known.items()}


def list_families(roots: Iterable[int], parents: Mapping[int, int]) -> dict[int, list[int]]:
    """Each of these with its descendants, itself first."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    families: dict[int, list[int]] = {}
    for root in roots:
        families[root] = members = [root]
        for pid in members:
            # Reused pids could make it its own descendant.
            members += [child for child in children.get(pid, ()) if child != root]
    return families


def list_descendants(root: int) -> set[int]:
    """Everything below root. A subreaper keeps double forks and new sessions below it: prctl(2)."""
    return set(list_families([root], read_parents())[root][1:])


def list_ancestors(pid: int, parents: Mapping[int, int]) -> list[int]:
    """Its parent, and so on to the first process."""
    ancestors: list[int] = []
    while parents.get(pid, 0) > 0 and parents[pid] not in ancestors:
        pid = parents[pid]
        ancestors.append(pid)
    return ancestors


def find_run_processes(run: str) -> set[int]:
    """Processes of this user that carry the run's id in their environment, or its mark, whoever their parent is."""
    variable, mark = ("%s=%s" % (RUN_ID, run)).encode(), compute_mark(run)
    return {
        pid
        for pid in procfs.list_pids()
        # A zombie has neither an environment nor anything left to kill, but still its limits.
        if pid != os.getpid()
        and (variable in procfs.read_environ(pid).split(b"\0") or (read_mark(pid) == mark and read_state(pid)))
    }


def read_state(pid: int) -> str:
    """R, S, D, T and so on: proc(5); "" for a process that is gone or a zombie without threads."""
    fields = procfs.read_stat(pid)
    return fields[procfs.STATE].decode() if fields and _is_alive(fields) else ""


def read_start_time(pid: int) -> int:
    """When the process started, in ticks; together with its pid it names one process for good."""
    fields = procfs.read_stat(pid)
    return int(fields[procfs.START_TIME]) if fields else 0


def continue_stopped(pid: int, started: int) -> bool:
    """Sends SIGCONT to a process that a signal has stopped; a process held by a debugger (state t) is left alone."""
    if pid <= 0 or read_state(pid) != "T" or read_start_time(pid) != started:
        return False
    send_signal([pid], signal.SIGCONT)
    return True


def _is_alive(fields: list[bytes]) -> bool:
    # A zombie with threads left is alive: its first thread has called pthread_exit(3), the others run.
    return fields[procfs.STATE] not in (b"Z", b"X") or int(fields[procfs.THREADS]) > 1


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
