"""Resident programs that listen: one that occupies a port, and a slow sshd."""

import ctypes
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

_PR_SET_DUMPABLE = 4
_BACKLOG = 128
_SSH_PORT = 22


def hold_port(ready: Callable[[str], None], *, port: int, uid: int) -> NoReturn:
    """Listens on a port as a user and never answers."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("0.0.0.0", port))  # noqa: S104 - inside a host, on all of its networks
        server.listen(_BACKLOG)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        # Make it inspectable by its own user again, so that `ss` can show who holds the port.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        ready("")
        while True:
            signal.pause()


def serve_slow_sshd(ready: Callable[[str], None], *, sshd: str, pid_file: str, seconds: float) -> NoReturn:
    """Replaces sshd: passes each connection to its own sshd after a delay."""

    def announce(*_: object) -> None:
        Path(pid_file).write_text(f"{os.getpid()}\n")

    # Like sshd after a reload; here every login reads the config file anyway.
    signal.signal(signal.SIGHUP, announce)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        # Open sessions use this port, too.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("0.0.0.0", _SSH_PORT))  # noqa: S104 - inside a host, on all of its networks
        server.listen(_BACKLOG)
        announce()
        ready("")
        while True:
            connection, _ = server.accept()
            with connection:
                if os.fork() == 0:
                    server.close()
                    _serve_connection(connection, sshd, seconds)


def _serve_connection(connection: socket.socket, sshd: str, seconds: float) -> NoReturn:
    try:
        time.sleep(seconds)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(connection.fileno(), 0)
        os.dup2(connection.fileno(), 1)
        # Without our marker in its environment: healing must not kill open sessions.
        os.execve(sshd, [sshd, "-i"], {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})  # noqa: S606 - no shell
    finally:
        os._exit(1)
