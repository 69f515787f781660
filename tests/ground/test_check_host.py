"""`aboard check` on hosts that lack room for a run: the right code on the right node, and its fix makes it green."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deadlines import wait_until

from aboard.agent import process_tree
from aboard.sandbox import Sandbox
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.host.resource_limits import LowLimits, SmallShm
from aboard.sandbox.faults.host.ssh_server import SshdSlow
from aboard.sandbox.faults.network.name_resolution import OwnNameOnLoopback
from aboard.sandbox.host import Host
from aboard.sandbox.host_setup.boot_host import SSHD_PID_FILE

pytestmark = pytest.mark.ground

NODES = ("n1", "n2", "n3", "n4")
SUBJECTS = ("--only", "reach", "--only", "host")


def check(box: Sandbox, *options: str, nodes: tuple[str, ...] = NODES) -> list[dict[str, Any]]:
    done = box.head.run(["aboard", "check", *nodes, "--json", *SUBJECTS, *options], timeout=90)
    assert done.stdout, done.stderr
    findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return findings


def told(findings: list[dict[str, Any]]) -> list[tuple[str, str, list[str]]]:
    return [(finding["code"], finding["severity"], finding["nodes"]) for finding in findings]


def carry_out(host: Host, fix: str, *, lines: int) -> None:
    """Types the first lines of a fix on a host, as its administrator."""
    for line in fix.splitlines()[:lines]:
        command = re.sub(r"\bsudo ", "", line.partition("    #")[0])
        done = host.run(["sh", "-c", command], root=True)
        assert done.returncode == 0, done.stderr


@contextmanager
def config(box: Sandbox, text: str) -> Iterator[str]:
    """A cluster file on the head."""
    box.head.run(["sh", "-c", "cat > setup.yaml"], input=text)
    try:
        yield "setup.yaml"
    finally:
        box.head.run(["rm", "-f", "setup.yaml"])


def test_healthy(box: Sandbox) -> None:
    """Four healthy nodes give no finding, in the full check and in the quick one."""
    assert check(box) == []
    assert check(box, "--quick") == []


def test_small_shm(box: Sandbox) -> None:
    """A /dev/shm as Docker gives it is named, and remounting it mends it."""
    with inject_temporarily(box, box.host("n2"), SmallShm(mib=64)):
        (finding,) = findings = check(box)
        assert told(findings) == [("host-shm", "warn", ["n2"])]
        assert "64 MiB" in finding["seen"]
        carry_out(box.host("n2"), finding["fix"], lines=1)
        assert check(box) == []


def test_own_name_on_loopback(box: Sandbox) -> None:
    """Debian's line in /etc/hosts is named, and the two lines of the fix mend it."""
    n2 = box.host("n2")
    kept = n2.run(["cat", "/etc/hosts"]).stdout
    try:
        with inject_temporarily(box, n2, OwnNameOnLoopback()):
            (finding,) = findings = check(box)
            assert told(findings) == [("host-own-name", "warn", ["n2"])]
            assert "127.0.1.1" in finding["seen"]
            carry_out(n2, finding["fix"], lines=2)
            assert check(box) == []
    finally:
        n2.run(["tee", "/etc/hosts"], root=True, input=kept)


@pytest.mark.parametrize(
    ("fault", "code"),
    [(LowLimits(), "host-open-files"), (LowLimits(nproc=800), "host-processes")],
    ids=["as typed", "nproc"],
)
def test_low_limits(box: Sandbox, fault: LowLimits, code: str) -> None:
    """An sshd that was started with low limits hands them to ranks; starting it anew mends it, as the fix says."""
    with inject_temporarily(box, box.host("n3"), fault):
        (finding,) = findings = check(box)
        assert told(findings) == [(code, "warn", ["n3"])]
        assert "systemctl restart ssh" in finding["fix"]
        box.host("n3").sshd_restart()
        assert check(box) == []


def test_a_low_soft_limit(box: Sandbox) -> None:
    """Where the hard limit allows it, a `setup` line is the fix, and the check sees the limits after that line."""
    n2 = box.host("n2")
    lower = f'read -r pid < {SSHD_PID_FILE}; prlimit --pid "$pid" --nofile=1000:'
    assert n2.run(["sh", "-c", lower], root=True).returncode == 0
    try:
        (finding,) = findings = check(box)
        assert told(findings) == [("host-open-files", "warn", ["n2"])]
        setup = finding["fix"].partition("    #")[0]
        with config(box, f"cluster:\n  nodes: [n1, {{name: n2, {setup}}}]\n") as path:
            assert check(box, nodes=(path,)) == []
    finally:
        n2.sshd_restart()


def test_affinity(box: Sandbox) -> None:
    """An sshd that is bound to one core binds all that it starts; unbinding it mends it."""
    n4 = box.host("n4")
    bind = f'read -r pid < {SSHD_PID_FILE}; taskset -pc "$1" "$pid"'
    assert n4.run(["sh", "-c", bind, "sh", "0"], root=True).returncode == 0
    try:
        findings = check(box)
        assert told(findings) == [("host-affinity", "warn", ["n4"])]
        assert n4.run(["sh", "-c", bind, "sh", f"0-{(os.cpu_count() or 1) - 1}"], root=True).returncode == 0
        assert check(box) == []
    finally:
        n4.sshd_restart()


def test_slow_login(box: Sandbox) -> None:
    """A slow sshd is named with the phase that it held up; the other nodes are not."""
    with inject_temporarily(box, box.host("n2"), SshdSlow(seconds=5)):
        (finding,) = findings = check(box)
    assert told(findings) == [("reach-slow-login", "warn", ["n2"])]
    assert "sshd banner" in finding["seen"]
    assert check(box) == []


def test_setup_line_that_fails(box: Sandbox) -> None:
    """`module` is not there in the shell that ranks get: the line and its error are named, and the fix mends it."""
    n2 = box.host("n2")
    n2.run(["tee", "/etc/profile.d/modules.sh"], root=True, input="module() { :; }\n")
    before = "cluster:\n  nodes: [n1, {name: n2, setup: [%s]}]\n"
    try:
        with config(box, before % "'true', module load cuda") as path:
            (finding,) = findings = check(box, nodes=(path,))
        assert told(findings) == [("reach-setup", "block", ["n2"])]
        assert "line 2 of `setup`, `module load cuda`, failed: module: command not found" in finding["seen"]
        assert ". /etc/profile.d/modules.sh" in finding["fix"]
        with config(box, before % "'true', . /etc/profile.d/modules.sh, module load cuda") as path:
            assert check(box, nodes=(path,)) == []
    finally:
        n2.run(["rm", "/etc/profile.d/modules.sh"], root=True)


HOLD = """
import asyncio, sys
from aboard.core.run.lease import Lease
from aboard.core.cluster.node import Node
from aboard.core.plan.plan import Start
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.node_session import NodeSession
async def main():
    lease = Lease(seconds=60, beat=5, grace=1)
    hold = NodeSession(Node(name="n2"), NodeDialer(), run="left-1", key="k" * 32, lease=lease)
    await hold.begin()
    await hold.start(Start(child="rank", argv=("sh", "-c", "setsid sleep 7200 & exec sleep 7200")))
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await hold.leave()
asyncio.run(main())
"""


def test_leftovers(box: Sandbox) -> None:
    """A run with a keeper is left alone; without any agent, what it left is named, and ended by --fix."""
    n2 = box.host("n2")
    before, files = set(n2.pids()), n2.run(["ls", "-A", "/tmp"]).stdout
    with box.head.popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as head:
        assert head.stdin is not None
        assert head.stdout is not None
        assert head.stdout.readline() == "ready\n"
        wait_until(lambda: len(sleepers(n2)) == 2, 20)
        assert check(box, "--fix") == []
        assert len(sleepers(n2)) == 2
        # Whoever is left of head, bridge, guard and keeper would clean up.
        head.kill()
        kill_agents(n2)
    wait_until(lambda: len(sleepers(n2)) == 1, 20)
    (finding,) = findings = check(box)
    assert told(findings) == [("host-leftovers", "warn", ["n2"])]
    assert "1 process from run left-1" in finding["seen"]
    assert "aboard check --fix" in finding["fix"]
    assert told(check(box, "--fix")) == [("host-leftovers-ended", "info", ["n2"])]
    wait_until(lambda: set(n2.pids()) <= before, 20)
    assert n2.run(["ls", "-A", "/tmp"]).stdout == files
    assert check(box) == []


def test_ranks_of_another_launcher(box: Sandbox) -> None:
    """One that outlived its launcher warns, is not ended by --fix, and is by the fix that is shown."""
    n1 = box.host("n1")
    start = "RANK=0 MASTER_ADDR=n1 setsid sleep 7200 </dev/null >/dev/null 2>&1 &"
    n1.run(["sh", "-c", start])
    wait_until(lambda: len(sleepers(n1)) == 1, 20)
    try:
        (finding,) = findings = check(box, "--fix")
        assert told(findings) == [("host-other-ranks", "warn", ["n1"])]
        assert len(sleepers(n1)) == 1
        assert n1.run(["sh", "-c", finding["fix"].splitlines()[1]]).returncode == 0
        wait_until(lambda: not sleepers(n1), 20)
        assert check(box) == []
    finally:
        for pid in sleepers(n1):
            os.kill(pid, signal.SIGKILL)


def test_fix_needs_its_subject(box: Sandbox) -> None:
    """Asked to end what nobody looks for, the check refuses instead of doing nothing."""
    done = box.head.run(["aboard", "check", "n1", "--fix", "--skip", "host"])
    assert done.returncode == 3
    assert "check-fix" in done.stderr


def kill_agents(host: Host) -> None:
    """Kills bridge, guard and keeper such that none can sweep up after another."""
    agents = sorted(pid for pid in host.pids() if "-ISc" in words(pid))
    # Parents first: a guard would wake a keeper that is stopped.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        process_tree.send_signal(agents, number)


def sleepers(host: Host) -> list[int]:
    return [pid for pid in host.pids() if words(pid)[:2] == ["sleep", "7200"]]


def words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []
