"""The lease, on eight real hosts: children live as long as it says, and not a moment less or much more."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deadlines import wait_until
from launching import build_sandbox

from aboard.sandbox import Host, Sandbox

pytestmark = pytest.mark.ground

LEASE = 8.0
GRACE = 1.0
# A sweep, a poll and eight hosts on two cores: what a busy machine may add.
SLACK = 4.0
DRIVER = Path(__file__).parent / "drivers" / "hold_head.py"
# loader and its worker, session, daemon, counter.
PROCESSES = 5


@pytest.fixture(scope="module")
def hosts() -> Iterator[Sandbox]:
    """Eight nodes for this module."""
    with build_sandbox("lease", nodes=8) as made:
        yield made


class Head:
    """The driver on the sandbox's head, as crew, and all that it has told so far."""

    def __init__(self, box: Sandbox, lease: float = LEASE) -> None:
        self.token = f"lease-{uuid.uuid4().hex[:12]}"
        self.box = box
        self.told: list[dict[str, Any]] = []
        self.process = box.head.popen(
            [sys.executable, "-c", DRIVER.read_text(), self.token, str(lease), *(host.name for host in box.nodes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def ready(self) -> None:
        self.until(lambda: any("ready" in line for line in self.told), 30, "the head holds all nodes")
        self.until(lambda: len(self.alive()) == PROCESSES * len(self.box.nodes), 15, "all children are up")

    def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        wait_until(condition, seconds, lambda: f"{what}; last told: {self.told[-5:]}")

    def alive(self) -> dict[int, Host]:
        """The children on all nodes, seen from outside: by a word on their command lines that only they carry."""
        found = {}
        for host in self.box.nodes:
            for pid in host.pids():
                if self.kind(pid) not in ("", "brief"):
                    found[pid] = host
        return found

    def states(self) -> dict[str, str]:
        return {line["node"]: line["state"] for line in list(self.told) if "state" in line}

    def lines(self, node: str, child: str) -> list[int]:
        """What a child printed, as the head has it, checked to be without a gap."""
        text, offset = "", 0
        for line in list(self.told):
            if "piece" in line and (line["node"], line["child"], line["stream"]) == (node, child, "stdout"):
                assert line["offset"] == offset
                assert line["dropped"] == 0
                text += line["piece"]
                offset += len(line["piece"])
        return [int(number) for number in text.split("\n")[:-1]]

    def close(self) -> None:
        """Ends what the test left over, and leaves no process of ours behind."""
        if self.process.poll() is None and self.process.stdin is not None:
            self.process.stdin.write("end\n")
            self.process.stdin.flush()
            self.until(lambda: not self.alive(), LEASE + GRACE + SLACK, "the end of all children")
            self.process.stdin.close()
        self.process.wait(30)
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def kind(self, pid: int) -> str:
        """Which of our children a process is, by the word after the token; "" when it is none of ours."""
        words = _cmdline(pid).decode(errors="replace").split("\0")
        return (words[words.index(self.token) + 1] or "daemon") if self.token in words else ""

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.told.append(json.loads(line))


@pytest.fixture
def head(hosts: Sandbox) -> Iterator[Head]:
    """Four kinds of children on each of eight hosts."""
    held = Head(hosts)
    try:
        held.ready()
        yield held
    finally:
        held.close()


def test_head_killed(head: Head) -> None:
    """With the head SIGKILLed, all children live until the lease is over, and none after it."""
    before = set(head.alive())
    killed = time.monotonic()
    head.process.kill()
    head.until(lambda: set(head.alive()) != before, LEASE + SLACK, "the first child's end")
    assert time.monotonic() - killed >= LEASE - 0.5
    head.until(lambda: not head.alive(), GRACE + SLACK, "the last child's end")
    head.until(lambda: not _ours(head.box), SLACK, "the end of supervisors, guards and bridges")
    for host in head.box.nodes:
        assert host.run(["ls", "-d", f"/tmp/aboard-{head.box.crew_id}"]).stdout == ""


def test_short_cut_goes_unnoticed(head: Head) -> None:
    """A silent cut that is shorter than the lease is not felt by any child, and the head misses nothing of it."""
    before = set(head.alive())
    cut(head.box)
    try:
        head.until(lambda: set(head.states().values()) == {"cut"}, LEASE, "the head notices the cut everywhere")
    finally:
        heal(head.box)
    head.until(lambda: set(head.states().values()) == {"held"}, LEASE + SLACK, "every node is held again")
    assert set(head.alive()) == before
    for host in head.box.nodes:
        counted = len(head.lines(host.name, "counter"))
        head.until(lambda: len(head.lines(host.name, "counter")) > counted, 5, "it counts on")  # noqa: B023 - called at once
        numbers = head.lines(host.name, "counter")
        assert numbers == list(range(len(numbers)))
    head.until(lambda: len(_ends(head, "brief")) == len(head.box.nodes), LEASE, "each brief child's end is told")
    assert sorted(line["code"] for line in _ends(head, "brief")) == [7] * len(head.box.nodes)
    for host in head.box.nodes:
        seqs = [line["seq"] for line in head.told if "event" in line and line["node"] == host.name]
        assert seqs == list(range(1, len(seqs) + 1))


def test_long_cut_ends_all(head: Head) -> None:
    """A cut that outlasts the lease leaves no child behind, and the head says that the nodes are gone."""
    before = set(head.alive())
    began = time.monotonic()
    cut(head.box)
    try:
        head.until(lambda: set(head.alive()) != before, LEASE + LEASE / 8 + SLACK, "the first child's end")
        assert time.monotonic() - began >= LEASE - 0.5
        head.until(lambda: not head.alive(), GRACE + SLACK, "the last child's end")
        head.until(lambda: set(head.states().values()) == {"gone"}, LEASE, "the head knows")
    finally:
        heal(head.box)


def test_bridge_killed(head: Head) -> None:
    """A bridge that is killed is replaced by a new one; the children don't notice."""
    before = set(head.alive())
    nodes = len(head.box.nodes)
    head.until(lambda: len(_bridges(head.box)) == nodes, 10, "bridges of earlier tests are gone")
    for bridge in _bridges(head.box):
        os.kill(bridge, signal.SIGKILL)
    head.until(lambda: _times(head, "cut") >= nodes, 5, "each loss is seen at once")
    head.until(lambda: set(head.states().values()) == {"held"}, LEASE, "every node is held again")
    assert set(head.alive()) == before
    numbers = head.lines("n1", "counter")
    assert numbers == list(range(len(numbers)))


def test_supervisor_killed(head: Head) -> None:
    """A supervisor that is killed takes all its children with it within 2 s, whatever they did to get away."""
    supervisors = {_parent(pid) for pid in head.alive() if head.kind(pid) == "counter"}
    assert len(supervisors) == len(head.box.nodes)
    for supervisor in supervisors:
        os.kill(supervisor, signal.SIGKILL)
    head.until(lambda: not head.alive(), 2.0, "all children are gone")
    head.until(lambda: set(head.states().values()) == {"gone"}, LEASE, "the head knows")


def cut(box: Sandbox) -> None:
    """The head's packets vanish, both ways, without a word."""
    for chain, side in (("INPUT", "-i"), ("OUTPUT", "-o")):
        box.head.run(["iptables", "-I", chain, side, "eth0", "-j", "DROP"], root=True).check_returncode()


def heal(box: Sandbox) -> None:
    for chain, side in (("INPUT", "-i"), ("OUTPUT", "-o")):
        box.head.run(["iptables", "-D", chain, side, "eth0", "-j", "DROP"], root=True).check_returncode()


def _ends(head: Head, child: str) -> list[dict[str, Any]]:
    return [line for line in list(head.told) if line.get("event") == "exited" and line["child"] == child]


def _times(head: Head, state: str) -> int:
    return sum(line.get("state") == state for line in list(head.told))


def _ours(box: Sandbox) -> list[int]:
    """Keepers, guards and bridges: they all still carry the bootstrap on their command line."""
    return [pid for host in box.nodes for pid in host.pids() if b"-ISc" in _cmdline(pid)]


def _bridges(box: Sandbox) -> list[int]:
    return [pid for pid in _ours(box) if _parent_name(pid) == "sshd"]


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _parent_name(pid: int) -> str:
    try:
        return Path(f"/proc/{_parent(pid)}/comm").read_text().strip()
    except OSError:
        return ""
