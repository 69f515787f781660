"""Mounts of a host for tests: of any kind, and of a server that hangs or died."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from deadlines import wait_until

from aboard.sandbox.host import Host


@contextmanager
def mount_stopped_sshfs(host: Host, where: str) -> Iterator[None]:
    """Every access hangs, as to a server that is gone."""
    with mount_sshfs(host, where) as server:
        os.kill(server, signal.SIGSTOP)
        yield


@contextmanager
def mount_killed_sshfs(host: Host, where: str) -> Iterator[None]:
    """Every access fails with `Transport endpoint is not connected`."""
    with mount_sshfs(host, where) as server:
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: not (Path(f"/proc/{server}/task").exists() and "sshfs" in _command(server)), 10)
        yield


@contextmanager
def mount_temporarily(host: Host, what: str, where: str) -> Iterator[None]:
    """What mount(8) is told to mount."""
    done = host.run(["sh", "-c", f"mount {what} {where}"], root=True)
    assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        host.run(["umount", "-l", where], root=True)


# An sftp server at the other end of a socket: no network, no login.
SSHFS = """
import socket, subprocess, sys
ours, theirs = socket.socketpair()
subprocess.Popen(["/usr/lib/openssh/sftp-server"], stdin=theirs, stdout=theirs)
theirs.close()
options = "passive,allow_other,default_permissions" + "".join("," + word for word in sys.argv[2:])
subprocess.run(["sshfs", "-f", "-o", options, "there:/var/tmp/job", sys.argv[1]], stdin=ours, stdout=ours)
"""


@contextmanager
def mount_sshfs(host: Host, where: str, *options: str) -> Iterator[int]:
    """A network mount over a directory, and the pid of the sshfs that serves it."""
    host.run(["sh", "-c", "mkdir -p /var/tmp/job; chmod 777 /var/tmp/job"], root=True)
    with host.popen(["python3", "-c", SSHFS, where, *options], root=True, stderr=subprocess.PIPE) as program:
        try:
            wait_until(lambda: host.run(["mountpoint", "-q", where], root=True).returncode == 0, 15, program.poll)
            yield next(pid for pid in host.pids() if _command(pid).startswith("sshfs\0"))
        finally:
            host.run(["umount", "-l", where], root=True)
            program.kill()
    host.run(["rm", "-rf", "/var/tmp/job"], root=True)


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""
