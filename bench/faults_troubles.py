"""Troubles from outside the job: sandbox faults, signals, dead mounts, services that do not reply."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from aboard.sandbox import Host
from aboard.sandbox.faults import Fault, inject_temporarily
from faults_stage import Stage, wait_until

# A file system whose server never answers: its process holds the connection and reads nothing.
_DEAD_MOUNT = """
import ctypes, os, sys, time
os.makedirs(sys.argv[1], exist_ok=True)
server = os.open("/dev/fuse", os.O_RDWR)
options = "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % server
done = ctypes.CDLL(None, use_errno=True).mount(b"dead", sys.argv[1].encode(), b"fuse", 0, options.encode())
print("ready" if done == 0 else "failed", flush=True)
time.sleep(3600)
"""
_SERVICE = """
import socket, time
server = socket.create_server(("", 8765))
print("ready", flush=True)
held = []
while True:
    held.append(server.accept())
"""
_HOG = "import os\nprint('ready', flush=True)\nfor _ in range(3): os.fork()\nwhile True: pass"


class Trouble(Protocol):
    """A trouble on a node, or on one rank of it, for the duration of a `with` block."""

    def on(self, stage: Stage, node: str, rank: int) -> "contextlib.AbstractContextManager[Any]": ...


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A fault of the sandbox. A `peer` of `""` becomes the node after the victim."""

    fault: Fault

    @contextlib.contextmanager
    def on(self, stage: Stage, node: str, rank: int) -> Iterator[None]:
        fault = self.fault
        if getattr(fault, "peer", None) == "next":
            fault = replace(fault, peer=f"n{int(node[1:]) % 4 + 1}")  # type: ignore[call-arg]
        with inject_temporarily(stage.box, stage.box.host(node), fault):
            yield


@dataclass(frozen=True, kw_only=True)
class Signalled:
    """A signal to a rank, to both ranks of a node, or to its supervisor: under another launcher, to its own part."""

    number: signal.Signals
    to: str = "rank"

    @contextlib.contextmanager
    def on(self, stage: Stage, node: str, rank: int) -> Iterator[None]:
        pids = pids_of(stage.box.host(node), self.to, rank)
        assert pids, f"nobody to signal: {self.to} {rank} on {node}"
        for pid in pids:
            os.kill(pid, self.number)
        try:
            yield
        finally:
            if self.number is signal.SIGSTOP:
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)


@dataclass(frozen=True, kw_only=True)
class Helper:
    """A program that stands in the way on a host for as long as the trouble lasts, and what is typed after it."""

    code: str
    words: tuple[str, ...] = ()
    on_head: bool = False
    after: str = "true"

    @contextlib.contextmanager
    def on(self, stage: Stage, node: str, rank: int) -> Iterator[None]:
        host = stage.box.head if self.on_head else stage.box.host(node)
        argv = [sys.executable, "-c", self.code, *self.words]
        helper = host.popen(argv, root=True, stdout=subprocess.PIPE, text=True)
        assert helper.stdout is not None
        try:
            assert helper.stdout.readline() == "ready\n", "the helper is not ready"
            yield
        finally:
            helper.kill()
            helper.wait()
            helper.stdout.close()
            host.run(["sh", "-c", self.after], root=True)


@dataclass(frozen=True, kw_only=True)
class Typed:
    """Lines of root on the node, with the sandbox's name in `BOX`, and those that undo them."""

    lines: str
    undo: str = "true"

    @contextlib.contextmanager
    def on(self, stage: Stage, node: str, rank: int) -> Iterator[None]:
        host = stage.box.host(node)
        done = host.run(["env", f"BOX={stage.box.name}", "bash", "-euc", self.lines], root=True)
        assert done.returncode == 0, done.stderr
        try:
            yield
        finally:
            host.run(["bash", "-uc", self.undo], root=True)


@dataclass(frozen=True, kw_only=True)
class Both:
    """Several at once, in this order."""

    parts: tuple[Trouble, ...]

    @contextlib.contextmanager
    def on(self, stage: Stage, node: str, rank: int) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for part in self.parts:
                stack.enter_context(part.on(stage, node, rank))
            yield


def dead_mount(path: str) -> Helper:
    return Helper(code=_DEAD_MOUNT, words=(path,), after=f"umount -l {path}")


SERVICE = Helper(code=_SERVICE, on_head=True)
HOG = Helper(code=_HOG)


def pids_of(host: Host, to: str, rank: int) -> list[int]:
    """The processes meant, as this machine numbers them."""
    if to == "supervisor":
        agents = [pid for pid in host.pids() if b"-ISc" in _read(pid, "cmdline").split(b"\0")]
        # A supervisor is below its guard, and that below the bridge.
        supervisors = [pid for pid in agents if _parent(pid) in agents and _parent(_parent(pid)) in agents]
        return supervisors or [pid for pid in host.pids() if _launches(_read(pid, "cmdline").split(b"\0"))]
    if to == "ssh":
        return [pid for pid in host.pids() if _read(pid, "cmdline").startswith(b"sshd: crew@")]
    texts = [f"RANK={each}".encode() for each in ([rank] if to == "rank" else (rank // 2 * 2, rank // 2 * 2 + 1))]
    found: list[int] = []

    def there() -> bool:
        found[:] = [
            pid
            for pid in host.pids()
            if b"fault_job.py" in _read(pid, "cmdline")
            and _is_python(_read(pid, "cmdline"))
            and any(text in _read(pid, "environ").split(b"\0") for text in texts)
            and not _launches(_read(pid, "cmdline").split(b"\0"))
        ]
        return bool(found)

    wait_until(there, 10)
    return found


def _is_python(command: bytes) -> bool:
    """Whether this is the rank itself, and not the runtime or the init process of its container."""
    return command.partition(b"\0")[0].rpartition(b"/")[2].startswith(b"python")


def _launches(words: list[bytes]) -> bool:
    """Whether this is torchrun's or DeepSpeed's part on a node."""
    return b"torch.distributed.run" in words or b"deepspeed.launcher.launch" in words


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _parent(pid: int) -> int:
    return int(_read(pid, "stat").rpartition(b")")[2].split()[1] or 0)
