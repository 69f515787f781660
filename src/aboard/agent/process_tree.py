"""Finds and terminates a run's processes by parent and run id, from /proc; never by a name pattern."""

from __future__ import annotations

import contextlib
import os
import signal
import time

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

RUN_ID = "ABOARD_RUN_ID"
# num_threads in /proc/PID/stat, counted from the state behind the name: proc(5).
THREADS = 17


def read_parents() -> dict[int, int]:
    """Every process and its parent; a process that exits meanwhile is left out."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open("/proc/%s/stat" % name, "rb") as stat:
                    # The name in parentheses may contain anything, including spaces and parentheses: proc(5).
                    fields = stat.read().rpartition(b")")[2].split()
                # A zombie with threads left is alive: its first thread has called pthread_exit(3), the others run.
                if fields[0] not in (b"Z", b"X") or int(fields[THREADS]) > 1:
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
    """Processes of this user that carry the run's id in their environment, whoever their parent is now."""
    variable = ("%s=%s" % (RUN_ID, run)).encode()
    pids = set()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open("/proc/%s/environ" % name, "rb") as environ:
                if variable in environ.read().split(b"\0"):
                    pids.add(int(name))
    return pids


def send_signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_run(run: str, seconds: float, reap: Callable[[], object]) -> set[int]:
    """Kills all that is below us or carries the run's id until nothing is left; returns what would not die."""
    deadline = time.monotonic() + seconds
    while True:
        left = list_descendants(os.getpid()) | find_run_processes(run)
        if not left or time.monotonic() > deadline:
            return left
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
