"""`aboard check` on real hosts: every way not to answer is told apart, on the right node, and the others are served."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from deadlines import slowness, wait_until, within

from aboard.sandbox import Sandbox
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.host.clock import ClockOffset
from aboard.sandbox.faults.host.login_shell import LoginShell, NoisyShell
from aboard.sandbox.faults.host.processes import PowerLoss
from aboard.sandbox.faults.host.python_interpreter import NoPython, OldPython
from aboard.sandbox.faults.host.ssh_server import KeyRemoved, MaxStartups, OtherHostKey, SshdSlow, SshdStopped
from aboard.sandbox.faults.network.firewall import FirewallDrop, FirewallReject
from aboard.sandbox.faults.network.name_resolution import UnresolvedName

pytestmark = pytest.mark.ground

NODES = ("n1", "n2", "n3", "n4")


def check(box: Sandbox, *options: str) -> dict[str, Any]:
    done = box.head.run(["aboard", "check", *NODES, "--json", "--skip", "collective", *options], timeout=90)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    report["exit"] = done.returncode
    return report


def codes(report: dict[str, Any]) -> dict[str, str]:
    return {node: finding["code"] for finding in report["findings"] for node in finding["nodes"]}


def reached(report: dict[str, Any]) -> set[str]:
    return {node["name"] for node in report["nodes"] if node["reached"]}


def test_healthy(box: Sandbox) -> None:
    """Healthy nodes answer with all that the check promises, and there is no finding."""
    report = check(box)
    assert report["exit"] == 0
    assert report["findings"] == []
    for node in report["nodes"]:
        assert node["hostname"] == node["name"]
        assert node["address"] == box.host(node["name"]).address
        assert node["user"] == "crew"
        assert node["kernel"].startswith(tuple("0123456789"))
        assert node["python"].startswith("3.")
        assert node["cores"] >= 1
        assert node["memory"] > 0
        assert node["accelerators"] == []
        assert 0 < node["round_trip"] < 5
        assert abs(node["clock_offset"]) < 1


# Where the fault is put, whom the check then names, with which code.
CASES = [
    ("n2", SshdStopped(), "n2", "reach-refused"),
    ("n2", FirewallDrop(), "n2", "reach-timeout"),
    ("n2", FirewallReject(answer="host-prohibited"), "n2", "reach-no-route"),
    ("n2", FirewallReject(answer="tcp-reset"), "n2", "reach-refused"),
    ("head", UnresolvedName(peer="n2"), "n2", "reach-unresolved"),
    ("n2", KeyRemoved(), "n2", "reach-key-refused"),
    ("n2", OtherHostKey(), "n2", "reach-host-key-changed"),
    ("n2", NoPython(), "n2", "reach-no-python"),
    ("n2", OldPython(), "n2", "reach-old-python"),
    ("n2", SshdSlow(seconds=60), "n2", "reach-silent"),
]


@pytest.mark.parametrize(
    ("where", "fault", "node", "code"), CASES, ids=[case[3] + "-" + case[1].name for case in CASES]
)
def test_told_apart(box: Sandbox, where: str, fault: Fault, node: str, code: str) -> None:
    """A node that doesn't answer is named with its own reason and a fix; the other nodes answer as ever."""
    # The node's own timeout, not the sum of all that ssh would wait for.
    with inject_temporarily(box, box.hosts[where], fault), within(30):
        report = check(box)
    assert report["exit"] == 2
    assert codes(report) == {node: code}
    assert reached(report) == set(NODES) - {node}
    assert report["findings"][0]["fix"]
    after = check(box)
    assert after["exit"] == 0


def test_no_key_at_all(box: Sandbox) -> None:
    """One finding for all nodes, and one command that creates a key and installs it."""
    box.head.run(["sh", "-c", "mkdir ~/.ssh/kept; mv ~/.ssh/id_* ~/.ssh/kept"])
    try:
        report = check(box)
    finally:
        box.head.run(["sh", "-c", "mv ~/.ssh/kept/* ~/.ssh; rmdir ~/.ssh/kept"])
    (finding,) = report["findings"]
    assert (finding["code"], finding["nodes"]) == ("reach-key-refused", list(NODES))
    assert finding["fix"].startswith("aboard trust ")


def test_power_loss(box: Sandbox) -> None:
    """A node without power is named within seconds."""
    with inject_temporarily(box, box.host("n3"), PowerLoss()):
        report = check(box)
    assert codes(report)["n3"] in ("reach-timeout", "reach-no-route")
    assert reached(report) == set(NODES) - {"n3"}


def test_all_at_once(box: Sandbox) -> None:
    """Four nodes broken in four ways get four findings, each its own."""
    faults: dict[str, Fault] = {"n1": KeyRemoved(), "n2": SshdStopped(), "n3": NoPython(), "n4": OtherHostKey()}
    with ExitStack() as stack:
        for node, fault in faults.items():
            stack.enter_context(inject_temporarily(box, box.host(node), fault))
        report = check(box)
    assert codes(report) == {
        "n1": "reach-key-refused",
        "n2": "reach-refused",
        "n3": "reach-no-python",
        "n4": "reach-host-key-changed",
    }


def test_unknown_host_key(box: Sandbox) -> None:
    """A host key that was never seen is not trusted, not even when ssh_config says so."""
    box.head.run(["sh", "-c", "mv ~/.ssh/known_hosts ~/.ssh/kept; echo 'StrictHostKeyChecking no' > ~/.ssh/config"])
    try:
        report = check(box)
    finally:
        box.head.run(["sh", "-c", "rm ~/.ssh/config; mv ~/.ssh/kept ~/.ssh/known_hosts"])
    assert set(codes(report).values()) == {"reach-host-key-unknown"}
    assert reached(report) == set()


def test_noisy_shell(box: Sandbox) -> None:
    """A login shell that prints is skipped over and mentioned, no more."""
    with inject_temporarily(box, box.host("n2"), NoisyShell()):
        report = check(box)
    assert report["exit"] == 0
    assert reached(report) == set(NODES)
    assert codes(report) == {"n2": "reach-noisy-shell"}


@pytest.mark.parametrize("fault", [LoginShell(shell="csh"), LoginShell(shell="fish"), LoginShell(shell="dash")])  # noqa: S604 - not that shell
def test_login_shells(box: Sandbox, fault: LoginShell) -> None:
    """The agent starts under any login shell."""
    with inject_temporarily(box, box.host("n2"), fault):
        report = check(box)
    assert report["findings"] == []
    assert reached(report) == set(NODES)


def test_no_python_under_csh(box: Sandbox) -> None:
    """A missing Python is told apart under csh too, which says it in other words and with another exit code."""
    with inject_temporarily(box, box.host("n2"), LoginShell(shell="csh"), NoPython()):  # noqa: S604 - not that shell
        report = check(box)
    assert codes(report) == {"n2": "reach-no-python"}


def test_max_startups(box: Sandbox) -> None:
    """A handshake that sshd drops is tried again until it gets in, and is mentioned."""
    with inject_temporarily(box, box.host("n2"), MaxStartups(limit=2)):
        crowd = box.host("n2").popen(["python3", "-c", CROWD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with crowd:
            assert crowd.stdout is not None
            assert crowd.stdin is not None
            assert crowd.stdout.readline() == "full\n"
            with box.head.popen([sys.executable, "-c", CHECK_ALOUD], stdout=subprocess.PIPE, text=True) as checking:
                assert checking.stdout is not None
                assert checking.stdout.readline() == "dropped\n"
                crowd.stdin.close()
                assert checking.stdout.read() == "reach-dropped-at-first\n"


# Fills sshd's two places with connections that never log in, until it is told to leave.
CROWD = """
import socket, sys
held = [socket.create_connection(("127.0.0.1", 22)) for _ in range(2)]
for each in held:
    each.recv(100)
print("full", flush=True)
sys.stdin.read()
"""
CHECK_ALOUD = """
import asyncio
from aboard.checks.reach import subject as reach
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.flows.check.check_cluster import check_cluster
from aboard.flows.check.check_observer import NullCheckObserver
drops = []
class Aloud(NullCheckObserver):
    def dialling(self, node, phase):
        if phase.startswith("dropped"):
            drops.append(node)
            if len(drops) == 1:
                print("dropped", flush=True)
report = asyncio.run(check_cluster(Cluster(nodes=(Node(name="n2"),)), (reach.SUBJECT,), watcher=Aloud()))
print(*(finding.code for finding in report.findings))
"""


@pytest.mark.parametrize(("seconds", "severity"), [(5, "warn"), (-30, "block")])
def test_clock_offset(box: Sandbox, seconds: int, severity: str) -> None:
    """A clock that is off is named, with its offset, and the more it is off the worse."""
    with inject_temporarily(box, box.host("n2"), ClockOffset(seconds=seconds)):
        report = check(box)
    (finding,) = report["findings"]
    assert (finding["code"], finding["nodes"], finding["severity"]) == ("host-clock", ["n2"], severity)
    offset = next(node["clock_offset"] for node in report["nodes"] if node["name"] == "n2")
    assert abs(offset - seconds) < 1


def test_the_head_is_a_node(box: Sandbox) -> None:
    """`localhost` beside other hosts is the head: reached without ssh, with the address that its peers reach."""
    done = box.head.run(["aboard", "check", "localhost", "n1", "--json"], timeout=60)
    nodes = json.loads(done.stdout)["nodes"]
    assert [node["hostname"] for node in nodes] == ["head", "n1"]
    assert done.returncode == 0


def test_nothing_is_left(box: Sandbox) -> None:
    """A check leaves no process and no file on any node, nor on the head."""
    files = ["ls", "-A", "/tmp", "/dev/shm"]
    before = {name: set(host.pids()) for name, host in box.hosts.items()}
    there = {name: host.run(files).stdout for name, host in box.hosts.items()}
    check(box)
    wait_until(lambda: not any(set(host.pids()) - before[name] for name, host in box.hosts.items()), 10)
    assert {name: host.run(files).stdout for name, host in box.hosts.items()} == there


def test_interrupted(box: Sandbox) -> None:
    """Ctrl-C in the middle leaves no ssh behind and ends with 130."""
    with inject_temporarily(box, box.host("n2"), FirewallDrop()):
        before = set(box.head.pids())
        with box.head.popen(["aboard", "check", *NODES], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as checking:
            wait_until(lambda: _dials(box), 15, "the broken node is dialled")
            (ours,) = (pid for pid in box.head.pids() if _words(pid)[1:4] == ["-m", "aboard", "check"])
            os.kill(ours, signal.SIGINT)
            checking.communicate(timeout=15 * slowness())
    assert checking.returncode == 130
    assert set(box.head.pids()) - before == set()


def test_port(box: Sandbox) -> None:
    """A node with a port of its own is dialled there."""
    box.host("n2").sshd_restart(["Port=2222"])
    try:
        box.head.run(["sh", "-c", "cat > ports.yaml"], input="cluster:\n  nodes: [n1, {name: n2, port: 2222}]\n")
        key = box.host("n2").ssh_host_key()
        box.head.run(["sh", "-c", "cp ~/.ssh/known_hosts kept; cat >> ~/.ssh/known_hosts"], input=f"[n2]:2222 {key}\n")
        done = box.head.run(["aboard", "check", "ports.yaml", "--json"])
    finally:
        box.host("n2").sshd_restart()
        box.head.run(["sh", "-c", "mv kept ~/.ssh/known_hosts; rm ports.yaml"])
    assert reached(json.loads(done.stdout)) == {"n1", "n2"}


def _dials(box: Sandbox) -> bool:
    """Whether an ssh to n2 is under way: one that was started, not a fork of ours that is about to become it."""
    return any(words[0] == "ssh" and "n2" in words for words in map(_words, box.head.pids()) if words)


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []
