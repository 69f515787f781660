"""The guard: the supervisor's parent, which outlives it only to clean up.

If the supervisor is killed (by the OOM killer, or by mistake), the kernel reparents its children to the guard, the next
subreaper above, which kills them at once. If the guard is killed, the supervisor gets a SIGTERM from the kernel and
terminates the children itself. Each continues the other if a signal has stopped it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import traceback
from collections.abc import Callable, Sequence

from aboard.agent import process_tree, run_directory
from aboard.agent.supervisor.rank_group import kill_group
from aboard.agent.supervisor.rank_processes import become_subreaper, request_parent_death_signal

SWEEP_SECONDS = 5.0
# The guard's exit code after a supervisor that a signal has killed is this plus the signal, as a shell's.
KILLED_CODE = 128


class Guard:
    """The guard as the supervisor knows it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._started = process_tree.read_start_time(self.pid)
        # The guard sets the first byte when it has continued the supervisor, which reports it and resets the byte.
        self.page = mmap.mmap(-1, mmap.PAGESIZE)

    @property
    def gone(self) -> bool:
        """For the supervisor: whether it has another parent now."""
        return os.getppid() != self.pid

    def continue_guard(self) -> bool:
        return process_tree.continue_stopped(self.pid, self._started)


def start_guarded(
    run: str, directory: str, ready: int, serve: Callable[[Guard], None], kept: Sequence[int] = ()
) -> None:
    """Forks guard and supervisor in a session of their own, with the `kept` descriptors; returns at once."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        if os.fork():
            os._exit(0)
        _detach_from_session(directory, (ready, *kept))
        code = _run_guard(run, directory, ready, serve)
    except BaseException:  # noqa: BLE001 - no other process reports it: write the traceback to the log
        traceback.print_exc()
    finally:
        os._exit(code)


def _run_guard(run: str, directory: str, ready: int, serve: Callable[[Guard], None]) -> int:
    become_subreaper()
    guard = Guard()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    supervisor = os.fork()
    if supervisor == 0:
        request_parent_death_signal(signal.SIGTERM)
        become_subreaper()
        serve(guard)
        return 0
    os.close(ready)
    signal.signal(signal.SIGTERM, lambda number, _frame: process_tree.send_signal([supervisor], number))
    status = _wait_for_supervisor(supervisor, guard)
    # Its pid may be reused from here on.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _killed, left = process_tree.kill_run(run, SWEEP_SECONDS, process_tree.reap_children)
    left |= clear_remains(run, directory)
    kill_group(run)
    run_directory.remove_directory(directory)
    return KILLED_CODE + os.WTERMSIG(status) if os.WIFSIGNALED(status) else 1 if left else 0


def clear_remains(run: str, directory: str) -> set[int]:
    """Removes directories of killed workers, and containers of killed runtimes; returns processes that don't die."""
    from aboard.agent.container.container_cleanup import remove_containers  # noqa: PLC0415 - most runs need none
    from aboard.agent.supervisor.temporary_directories import remove_dead_directories  # noqa: PLC0415 - not at a start

    remove_dead_directories(directory)
    # To Podman a container lives on while one of its processes is a zombie.
    process_tree.reap_children()
    if remove_containers(run, directory):
        return process_tree.kill_run(run, SWEEP_SECONDS, process_tree.reap_children)[1]
    return set()


def _wait_for_supervisor(supervisor: int, guard: Guard) -> int:
    """Waits for the supervisor only; processes that are reparented to us meanwhile are cleaned up afterwards."""
    status = 0
    with contextlib.suppress(ChildProcessError):
        while os.WIFSTOPPED(status := os.waitpid(supervisor, os.WUNTRACED)[1]):
            # A stopped supervisor would let its children live for ever, past any lease.
            guard.page[0] = 1
            os.kill(supervisor, signal.SIGCONT)
    return status


def _detach_from_session(directory: str, kept: Sequence[int]) -> None:
    """Closes the transport's descriptors: one left open would keep its ssh session from ending."""
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(os.path.join(directory, "supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(log, 2)
    first = 3
    for fd in (*sorted(kept), 65536):
        os.closerange(first, fd)
        first = fd + 1
    os.chdir("/")
