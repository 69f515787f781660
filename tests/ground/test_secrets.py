"""A secret in a child's env is in that process's environ and nowhere else, on any host."""

import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from aboard.sandbox import Sandbox

pytestmark = pytest.mark.ground

DRIVER = Path(__file__).parent / "drivers" / "secret_head.py"
# Everything on a host that a user, a supervisor or a daemon can write to.
WRITABLE = ("/tmp", "/dev/shm", "/run", "/home", "/shared", "/private", "/var/tmp", "/var/log", "/var/mail")


def test_secret_stays_in_its_process(box: Sandbox) -> None:
    """Searched for in every argv, environ, file, log and event while the child runs, and in what is left after it."""
    secret = f"hf_{uuid.uuid4().hex}"
    run = f"secret-{uuid.uuid4().hex[:8]}"
    head = box.head.popen(
        [sys.executable, "-c", DRIVER.read_text(), run, "n1", "n2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert head.stdin is not None
    assert head.stdout is not None
    head.stdin.write(f"{secret}\n")
    head.stdin.flush()
    told = []
    for line in head.stdout:
        told.append(line)
        if line == "READY\n":
            break
    assert told[-1:] == ["READY\n"], "".join(told)
    holders = []
    for host in box.hosts.values():
        for pid in host.pids():
            assert secret not in _read(pid, "cmdline"), f"in the argv of a process on {host.name}"
            if secret in _read(pid, "environ"):
                holders.append((host.name, _read(pid, "comm").strip()))
        assert _files_with(box, host.name, secret) == ""
    # The exception that the kernel makes: the two processes that it was meant for.
    assert sorted(holders) == [("n1", "python3"), ("n2", "python3")]
    head.stdin.close()
    told += head.stdout.readlines()
    assert head.wait(30) == 0, "".join(told)
    head.stdout.close()
    assert secret not in "".join(told)
    assert secret[5:] not in "".join(told)
    assert "my token is [secret]" in "".join(told)
    for name in box.hosts:
        assert _files_with(box, name, secret) == ""


def _read(pid: int, what: str) -> str:
    try:
        return Path(f"/proc/{pid}/{what}").read_text(errors="replace")
    except OSError:
        return ""


def _files_with(box: Sandbox, name: str, secret: str) -> str:
    """The pattern goes in on stdin, lest the search finds itself."""
    search = ["grep", "-rlsF", "--devices=skip", "-f", "-", *WRITABLE]
    return box.hosts[name].run(search, root=True, input=f"{secret}\n").stdout
