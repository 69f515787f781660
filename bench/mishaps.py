"""Faults made by shell lines that root runs on a host, for what the sandbox's own catalogue lacks."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aboard.agent import process_tree
from aboard.sandbox import Host, Sandbox

_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Mishap:
    """`what` is for the table; `lines` run in root's bash on the host, `act` where lines are not enough."""

    what: str
    lines: str = "true"
    act: Callable[[Sandbox, Host], None] | None = None

    def describe(self) -> str:
        return self.what

    def inject(self, box: Sandbox, host: Host) -> None:
        done = host.run(["bash", "-euc", self.lines], root=True, timeout=_SECONDS)
        assert done.returncode == 0, f"{self.what}: {done.stderr}"
        if self.act is not None:
            self.act(box, host)


# A real supervisor with a real child, whose head then goes away.
_HOLD = """
import asyncio, sys
from aboard.core.run.lease import Lease
from aboard.core.cluster.node import Node
from aboard.core.plan.plan import Start
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.node_session import NodeSession
async def main():
    lease = Lease(seconds=60, beat=5, grace=1)
    hold = NodeSession(Node(name=sys.argv[1]), NodeDialer(), run="left-1", key="k" * 32, lease=lease)
    await hold.begin()
    await hold.start(Start(child="rank", argv=("sh", "-c", "setsid sleep 7200 & exec sleep 7200")))
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await hold.leave()
asyncio.run(main())
"""


def leave_behind(box: Sandbox, host: Host) -> None:
    """Leaves a run whose head and agents are killed such that none can clean up after another."""
    argv = [sys.executable, "-c", _HOLD, host.name]
    with box.head.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as head:
        assert head.stdin is not None
        assert head.stdout is not None
        assert head.stdout.readline() == "ready\n"
        # A child that is being started looks like its supervisor.
        _wait_for_sleepers(host, 2)
        # Whoever is left of head, bridge, guard and supervisor would clean up.
        head.kill()
        agents = sorted(pid for pid in host.pids() if "-ISc" in _read_command_line(pid))
        # Parents first: a guard would resume a stopped supervisor.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            process_tree.send_signal(agents, number)
    _wait_for_sleepers(host, 1)


def _wait_for_sleepers(host: Host, count: int) -> None:
    deadline = time.monotonic() + _SECONDS
    while sum(_read_command_line(pid)[:2] == ["sleep", "7200"] for pid in host.pids()) != count:
        assert time.monotonic() < deadline, f"not {count} ranks"


def _read_command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []


# Two clients that have connected and do not log in.
STRANGERS = Mishap(
    what="two clients occupy its sshd without logging in",
    lines="""
setsid python3 -c 'import socket, time
links = [socket.create_connection(("127.0.0.1", 22)) for _ in range(2)]
print([link.recv(4) for link in links], file=open("/run/strangers", "w"), flush=True)
time.sleep(600)' </dev/null >/dev/null 2>&1 &
until [ -s /run/strangers ]; do sleep 0.02; done""",
)
# sshd asks a missing name server for the client's name.
DEAD_DNS = Mishap(
    what="UseDNS and a dead name server",
    lines="""
sed -i '/ head$/d' /etc/hosts
echo 'nameserver 10.77.255.250' > /etc/resolv.conf
echo 'UseDNS yes' > /etc/ssh/sshd_config.d/50-dns.conf
systemctl reload ssh""",
)
# An sftp server behind a socket pair, without network or login; then it hangs.
HANGING_MOUNT = Mishap(
    what="a mount whose server hangs",
    lines="""
mkdir -p /var/tmp/job; chmod 777 /var/tmp/job
setsid python3 -c 'import socket, subprocess
ours, theirs = socket.socketpair()
subprocess.Popen(["/usr/lib/openssh/sftp-server"], stdin=theirs, stdout=theirs)
options = "passive,allow_other,default_permissions"
subprocess.run(["sshfs", "-f", "-o", options, "there:/var/tmp/job", "/private/job"], stdin=ours, stdout=ours)
' </dev/null >/dev/null 2>&1 &
until mountpoint -q /private/job; do sleep 0.02; done
kill -STOP "$(pgrep -x sshfs)" """,
)
