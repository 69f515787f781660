"""Starts one process by fork and exec, with what posix_spawn can't do: session, directory, death signal."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping, Sequence
    from typing import NoReturn

# Python ignores the first two; a child that inherited that would not die of a closed pipe as every program expects.
RESTORED_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


def spawn_process(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    stdin: int,
    stdout: int,
    stderr: int,
    in_child: Callable[[], None] | None = None,
) -> tuple[int, int]:
    """Returns the pid of argv in a session of its own, and a descriptor for `failure`.

    `in_child` may change argv and env in place. It does not wait for exec: a program or a directory on a dead mount
    would block the caller for ever.
    """
    if not argv:
        raise OSError(22, "an empty command")
    error_fd, write_end = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(error_fd)
        os.close(write_end)
        raise
    if pid == 0:
        _exec_child(argv, env, cwd, (stdin, stdout, stderr), in_child, write_end)
    os.close(write_end)
    os.set_blocking(error_fd, False)
    return pid, error_fd


def drop_relative_folders(env: MutableMapping[str, str]) -> None:
    """For programs of ours: with `.` in PATH, a check would run the nvidia-smi of a cloned working directory."""
    env["PATH"] = os.pathsep.join(filter(os.path.isabs, env.get("PATH", os.defpath).split(os.pathsep)))


def read_start_failure(error_fd: int) -> str | None:
    """Why the program could not be started; "" when it was, None while that is unknown."""
    try:
        return os.read(error_fd, 4096).decode("utf-8", "replace")
    except BlockingIOError:
        return None


def _exec_child(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str | None,
    stdio: tuple[int, int, int],
    in_child: Callable[[], None] | None,
    error_fd: int,
) -> NoReturn:
    step = "can't start %s" % argv[0]
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        # Through spare numbers first, so that none of the three is overwritten before it is used.
        spare = [os.dup(fd) for fd in stdio]
        for number, fd in enumerate(spare):
            os.dup2(fd, number, inheritable=True)
        if in_child is not None:
            in_child()
            step = "can't start %s" % argv[0]
        if cwd is not None:
            step = "can't enter %s" % cwd
            os.chdir(cwd)
            step = "can't start %s" % argv[0]
        for number in RESTORED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _exec_program(argv, env)
    except BaseException as error:  # noqa: BLE001 - nothing may unwind into a second copy of the caller
        why = getattr(error, "strerror", None) or error
        os.write(error_fd, ("%s: %s" % (step, why)).encode("utf-8", "replace")[:4096])
    finally:
        os._exit(127)


def _exec_program(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """As os.execvpe, which imports `warnings` anew in every child: 3 of the 4 ms that a command costs."""
    if "/" in argv[0]:
        os.execve(argv[0], list(argv), dict(env))  # noqa: S606 - no shell is wanted here
    refused: OSError | None = None
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        try:
            os.execve(os.path.join(folder, argv[0]), list(argv), dict(env))  # noqa: S606 - as above
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refused = refused or error
    raise refused or FileNotFoundError(2, "No such file or directory")
