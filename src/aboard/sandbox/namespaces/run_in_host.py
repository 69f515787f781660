"""Runs a program inside a host, and kills it for certain when the caller goes away.

    us ── run_in_host (outside; the handle that the caller may kill)
          └── watcher (inside; notices the exit of `run_in_host`, even by SIGKILL, as the end of a pipe)
              └── the program (inside, in a session of its own)

`nsenter` has no watcher: if it is killed, its program keeps running.
"""

import errno
import json
import os
import resource
import select
import signal
import sys
from typing import Any, NoReturn

from aboard.sandbox.namespaces import system_calls

EXIT_HOST_OFF = 125


def main(handle: int) -> None:
    """Entry point of the started program: enters a process's namespaces, runs the command, exits with its status."""
    with os.fdopen(handle, "rb") as file:
        spec: dict[str, Any] = json.load(file)
    try:
        pidfd = _open_pidfd(**spec["target"])
        system_calls.set_namespaces(pidfd, system_calls.ALL_NAMESPACES)
    except OSError as error:
        sys.stderr.write(f"this host is off ({error.strerror})\n")
        sys.exit(EXIT_HOST_OFF)
    os.close(pidfd)
    leash, ours = os.pipe()
    watcher = os.fork()
    if watcher == 0:
        os.close(ours)
        _watch_program(spec, leash)
    os.close(leash)
    _release_streams()
    # Ctrl-C at a terminal reaches the program too; we stay to pass on its exit status.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    _, status = os.waitpid(watcher, 0)
    _exit_with_status(status)


def _open_pidfd(pid: int, start: int) -> int:
    """Opens a pidfd, which pins the pid; the start time proves that it is the intended process."""
    pidfd = os.pidfd_open(pid)
    if int(_read_stat(pid)[19]) != start:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    return pidfd


def _watch_program(spec: dict[str, Any], leash: int) -> NoReturn:
    program = os.fork()
    if program == 0:
        os.close(leash)
        _exec_program(spec)
    _release_streams()
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    pidfd = os.pidfd_open(program)
    ready, _, _ = select.select([pidfd, leash], [], [])
    if pidfd not in ready:
        if spec["own_session"]:
            _kill_session(program)
        else:
            os.kill(program, signal.SIGKILL)
    _, status = os.waitpid(program, 0)
    _exit_with_status(status)


def _exec_program(spec: dict[str, Any]) -> NoReturn:
    try:
        if spec["own_session"]:
            os.setsid()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.umask(0o022)
        # Switching from root to another user drops all capabilities; none is inheritable or ambient (capabilities(7)).
        os.setgroups([spec["gid"]])
        os.setresgid(spec["gid"], spec["gid"], spec["gid"])
        os.setresuid(spec["uid"], spec["uid"], spec["uid"])
        os.chdir(spec["cwd"])
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606 - no shell
    except OSError as error:
        sys.stderr.write(f"{spec['argv'][0]}: {error.strerror}\n")
        sys.stderr.flush()
        # Like a shell: 127 not found, 126 not executable.
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _kill_session(leader: int) -> None:
    """Kills all processes of a session, and repeats until none is left: a fork can outrun one pass."""
    while alive := [pid for pid in _list_session(leader) if pid != leader]:
        for pid in alive:
            _kill_process(pid)
        _kill_process(leader)
    _kill_process(leader)


def _list_session(leader: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib costs 6 ms in each command that is run
        if name.isdigit():
            try:
                fields = _read_stat(int(name))
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] not in "ZX":
                found.append(int(name))
    return found


def _read_stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from `state` on, as in process_identity.py."""
    with open(f"/proc/{pid}/stat", errors="replace") as file:  # noqa: PTH123 - pathlib costs 6 ms in each command that is run
        return file.read().rpartition(")")[2].split()


def _kill_process(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _release_streams() -> None:
    """Closes our copies of the program's pipes, so that readers see the end when it closes them."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


def _exit_with_status(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pause()
    os._exit(os.WEXITSTATUS(status))
