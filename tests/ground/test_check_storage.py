"""`aboard check` of storage on real hosts: what isn't there, isn't shared, is full or hangs is named, and mended."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from deadlines import wait_until, within

from aboard.sandbox import Sandbox
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.host.disk import DiskFull, PathMissing
from aboard.sandbox.host import Host

pytestmark = pytest.mark.ground

DRIVER = Path(__file__).parent / "drivers" / "some_subjects.py"
JOB = "/private/job"


def check(box: Sandbox, workdir: str | None, how: str = "full", *more: str) -> list[dict[str, Any]]:
    words = [*([f"cluster.workdir={workdir}"] if workdir else []), *more]
    done = box.head.run([sys.executable, "-c", DRIVER.read_text(), how, "storage", "n[1-4]", *words], timeout=90)
    assert done.stdout, done.stderr
    findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return findings


def told(findings: list[dict[str, Any]]) -> list[tuple[str, str, list[str]]]:
    """Code, severity and nodes of all that is more than worth a line."""
    return [(each["code"], each["severity"], each["nodes"]) for each in findings if each["severity"] != "info"]


@pytest.fixture
def job(box: Sandbox) -> Iterator[str]:
    """A directory of its own on each node."""
    for host in box.nodes:
        host.run(["mkdir", JOB])
    yield JOB
    for host in box.nodes:
        host.run(["rm", "-rf", JOB])


@pytest.mark.parametrize("how", ["quick", "full"])
@pytest.mark.parametrize("workdir", [None, "/shared", "/private"])
def test_healthy(box: Sandbox, workdir: str | None, how: str) -> None:
    """Nothing is found on healthy nodes but that what is private is private, and nothing is left behind there."""
    findings = check(box, workdir, how)
    private = workdir == "/private" and how == "full"
    assert [each["code"] for each in findings] == (["storage-private"] if private else [])
    assert told(findings) == []
    if workdir:
        assert {host.run(["ls", "-A", workdir]).stdout for host in box.nodes} == {""}


def test_missing(box: Sandbox, job: str) -> None:
    """A directory that one node lacks is named, and the fix makes it."""
    with inject_temporarily(box, box.host("n2"), PathMissing(path=job)):
        findings = check(box, job, "quick")
        assert told(findings) == [("storage-missing", "block", ["n2"])]
        assert "n[1,3-4] have it" in findings[0]["seen"]
        assert box.head.run(["sh", "-c", findings[0]["fix"]]).returncode == 0
        assert told(check(box, job)) == []
        box.host("n2").run(["rmdir", job])


def test_missing_everywhere(box: Sandbox) -> None:
    """A name that no node knows is one finding."""
    assert told(check(box, "/no/such/place")) == [("storage-missing", "block", ["n1", "n2", "n3", "n4"])]


@pytest.mark.parametrize("node", ["n1", "n3"])
def test_not_shared(box: Sandbox, node: str) -> None:
    """A share that one node hasn't mounted is named, whoever it is; mounted again, all is well."""
    with inject_temporarily(box, box.host(node), PathMissing(path="/shared")):
        assert told(check(box, "/shared", "quick")) == [("storage-not-mounted", "warn", [node])]
        findings = check(box, "/shared")
        assert told(findings) == [("storage-not-shared", "block", [node])]
        assert "sudo mount /shared" in findings[0]["fix"]
    assert check(box, "/shared") == []


@pytest.mark.parametrize(("free", "code", "severity"), [(0, "storage-full", "block"), (10, "storage-low", "warn")])
def test_full(box: Sandbox, job: str, free: int, code: str, severity: str) -> None:
    """A full disk stops a run, one that is nearly full is a warning."""
    with inject_temporarily(box, box.host("n2"), DiskFull(path=job, free_mib=free)):
        for how in ("quick", "full"):
            findings = check(box, job, how)
            assert told(findings) == [(code, severity, ["n2"])]
        assert box.head.run(["sh", "-c", findings[0]["fix"]]).returncode == 0
    assert told(check(box, job)) == []


def test_less_room_than_the_run_will_write(box: Sandbox, job: str) -> None:
    """A disk that looks well is too small for what `run:` says; the fix shows what fills it."""
    run = [f"run.output={job}/new/out", "run.writes=3GiB"]
    with inject_temporarily(box, box.host("n2"), DiskFull(path=job, free_mib=2048)):
        box.host("n2").run(["sh", "-c", f"head -c 30M /dev/zero > {job}/old.ckpt"])
        assert told(check(box, job)) == []
        for how in ("quick", "full"):
            findings = check(box, job, how, *run)
            assert told(findings) == [("storage-space", "block", ["n2"])]
        assert "the run will write 3 GiB" in findings[0]["seen"]
        assert f"tmpfs on {job}), 1 GiB short" in findings[0]["seen"]
        shown = box.head.run(["sh", "-c", findings[0]["fix"].splitlines()[0]])
        assert shown.returncode == 0
        assert "30M" in shown.stdout
        assert told(check(box, job, "quick", run[0], "run.writes=1GiB")) == []
        box.host("n2").run(["rm", f"{job}/old.ckpt"])
    assert told(check(box, job, "quick", *run)) == []


def test_where_the_run_may_not_write(box: Sandbox, job: str) -> None:
    """A directory that can't be made stops the run on the first node."""
    findings = check(box, job, "quick", "run.output=/opt/out", "run.writes=1MB")
    assert told(findings)[0] == ("storage-output", "block", ["n1"])
    assert [each["nodes"] for each in findings] == [["n1"], ["n2"], ["n3"], ["n4"]]


def test_room_for_no_more_files(box: Sandbox, job: str) -> None:
    """A disk with free bytes and no free file entries is full, too."""
    with _mounted(box.host("n2"), "-t tmpfs -o nr_inodes=1,mode=777 none", job):
        findings = check(box, job)
        assert told(findings) == [("storage-inodes", "block", ["n2"])]
    assert told(check(box, job)) == []


def test_read_only(box: Sandbox, job: str) -> None:
    """A mount that is read-only on one node is named; so is a directory that belongs to someone else."""
    with _mounted(box.host("n2"), "-t tmpfs -o ro none", job):
        assert told(check(box, job)) == [("storage-read-only", "warn", ["n2"])]
    box.host("n3").run(["chown", "0:0", job], root=True)
    findings = check(box, job)
    box.host("n3").run(["chown", str(box.crew_id), job], root=True)
    assert told(findings) == [("storage-read-only", "warn", ["n3"])]
    assert "which user 0 owns" in findings[0]["seen"]
    assert told(check(box, job)) == []


@pytest.mark.parametrize("needed", [True, False])
def test_a_mount_that_hangs(box: Sandbox, job: str, needed: bool) -> None:  # noqa: FBT001 - a case, not a flag
    """A mount whose server doesn't answer is named within seconds, worse if the run needs it; the fix frees it."""
    with _sshfs(box.host("n2"), job) as server:
        assert told(check(box, job, "quick")) == []
        server.send_signal(signal.SIGSTOP)
        with within(10):
            findings = check(box, job if needed else None)
        assert told(findings) == [("storage-dead-mount", "block" if needed else "warn", ["n2"])]
        assert findings[0]["seen"].startswith(f"{job} (fuse.sshfs from ")
        _as_root(box.host("n2"), findings[0]["fix"].splitlines()[0])
        assert told(check(box, job, "quick")) == []


def test_a_mount_whose_program_died(box: Sandbox, job: str) -> None:
    """`Transport endpoint is not connected` is a dead mount, not a missing directory."""
    with _sshfs(box.host("n2"), job) as server:
        server.kill()
        findings = check(box, job)
        assert told(findings) == [("storage-dead-mount", "block", ["n2"])]
        assert "Transport endpoint is not connected" in findings[0]["seen"]
        _as_root(box.host("n2"), findings[0]["fix"].splitlines()[0])
    assert told(check(box, job)) == []


def test_no_memory_maps(box: Sandbox, job: str) -> None:
    """A FUSE mount with direct_io can't be mapped; that is a warning."""
    with _sshfs(box.host("n2"), job, "direct_io"):
        findings = check(box, job)
        assert told(findings) == [("storage-no-mmap", "warn", ["n2"])]


@contextmanager
def _mounted(host: Host, what: str, where: str) -> Iterator[None]:
    done = host.run(["sh", "-c", f"mount {what} {where}"], root=True)
    assert done.returncode == 0, done.stderr
    try:
        yield
    finally:
        host.run(["umount", "-l", where], root=True)


class _Server:
    """The sshfs behind a mount."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        wait_until(lambda: not (Path(f"/proc/{self.pid}/task").exists() and "sshfs" in _command(self.pid)), 10)


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
def _sshfs(host: Host, where: str, *options: str) -> Iterator[_Server]:
    """A network mount over a directory, served by a program that a test may stop or kill."""
    host.run(["sh", "-c", "mkdir -p /var/tmp/job; chmod 777 /var/tmp/job"], root=True)
    with host.popen(["python3", "-c", SSHFS, where, *options], root=True, stderr=subprocess.PIPE) as program:
        try:
            wait_until(lambda: host.run(["mountpoint", "-q", where], root=True).returncode == 0, 15, program.poll)
            yield _Server(next(pid for pid in host.pids() if _command(pid).startswith("sshfs\0")))
        finally:
            host.run(["umount", "-l", where], root=True)
            program.kill()
    host.run(["rm", "-rf", "/var/tmp/job"], root=True)


def _as_root(host: Host, line: str) -> None:
    done = host.run(["sh", "-c", line.removeprefix("sudo ")], root=True)
    assert done.returncode == 0, done.stderr


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""
