"""`aboard check` on real hosts: every way not to answer is told apart, on the right node, and the others are served.

Faults that do not disturb each other are on different nodes of one sandbox, which one check judges.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from deadlines import slowness, wait_until, within
from launching import build_sandbox

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


def check(box: Sandbox, *options: str, nodes: tuple[str, ...] = NODES) -> dict[str, Any]:
    done = box.head.run(["aboard", "check", *nodes, "--json", *(options or ("--skip", "collective"))], timeout=90)
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
        facts = node["facts"]
        assert facts["kernel"].startswith(tuple("0123456789"))
        assert node["python"].startswith("3.")
        assert facts["cores"] >= 1
        assert facts["memory"] > 0
        assert facts["accelerators"] == []
        assert 0 < node["round_trip"] < 5
        assert abs(node["clock_offset"]) < 1


# One for each node of a sandbox: its faults, and the code of its finding if it has one (of a dead host: one of two).
CASES: dict[str, tuple[tuple[Fault, ...], tuple[str, ...]]] = {
    "sshd-stopped": ((SshdStopped(),), ("reach-refused",)),
    "packets-dropped": ((FirewallDrop(),), ("reach-timeout",)),
    "packets-rejected": ((FirewallReject(answer="host-prohibited"),), ("reach-no-route",)),
    "connections-reset": ((FirewallReject(answer="tcp-reset"),), ("reach-refused",)),
    "name-unknown-on-the-head": ((), ("reach-unresolved",)),
    "key-removed": ((KeyRemoved(),), ("reach-key-refused",)),
    "other-host-key": ((OtherHostKey(),), ("reach-host-key-changed",)),
    "no-python": ((NoPython(),), ("reach-no-python",)),
    "old-python": ((OldPython(),), ("reach-old-python",)),
    # It says so in other words and with another exit code.
    "no-python-under-csh": ((LoginShell(shell="csh"), NoPython()), ("reach-no-python",)),  # noqa: S604 - not that shell
    "silent-sshd": ((SshdSlow(seconds=60),), ("reach-silent",)),
    "no-power": ((PowerLoss(),), ("reach-no-route", "reach-timeout")),
    # These are reached. What a noisy shell prints is skipped over and mentioned, no more.
    "noisy-shell": ((NoisyShell(),), ("reach-noisy-shell",)),
    "csh": ((LoginShell(shell="csh"),), ()),  # noqa: S604 - not that shell
    "fish": ((LoginShell(shell="fish"),), ()),  # noqa: S604 - not that shell
    "dash": ((LoginShell(shell="dash"),), ()),  # noqa: S604 - not that shell
    "clock-5-s-ahead": ((ClockOffset(seconds=5),), ("host-clock",)),
    "clock-30-s-behind": ((ClockOffset(seconds=-30),), ("host-clock",)),
    "healthy": ((), ()),
}
HOSTS = {name: f"n{number}" for number, name in enumerate(CASES, 1)}
REACHED = frozenset(("noisy-shell", "csh", "fish", "dash", "clock-5-s-ahead", "clock-30-s-behind", "healthy"))


@pytest.fixture(scope="module")
def reports() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """All cases on the nodes of one sandbox, and one check of them; and one when they are healed."""
    with build_sandbox("reach", nodes=len(CASES)) as box:
        with ExitStack() as stack:
            stack.enter_context(
                inject_temporarily(box, box.head, UnresolvedName(peer=HOSTS["name-unknown-on-the-head"]))
            )
            for name, (faults, _) in CASES.items():
                stack.enter_context(inject_temporarily(box, box.host(HOSTS[name]), *faults))
            # A node's own timeout, not the sum of all that ssh would wait for.
            with within(30):
                before = check(box, nodes=tuple(HOSTS.values()))
        yield before, check(box, "--only", "reach", "--only", "host", nodes=tuple(HOSTS.values()))


@pytest.mark.xdist_group("check-reach")
@pytest.mark.parametrize("name", CASES)
def test_told_apart(reports: tuple[dict[str, Any], dict[str, Any]], name: str) -> None:
    """A node that doesn't answer is named with its own reason and a fix; the other nodes answer as ever."""
    (report, after), node, named = reports, HOSTS[name], CASES[name][1]
    found = [finding for finding in report["findings"] if node in finding["nodes"]]
    assert [finding["nodes"] for finding in found] == ([[node]] if named else [])
    assert {finding["code"] for finding in found} <= set(named)
    assert all(finding["fix"] for finding in found if finding["severity"] != "info")
    assert (node in reached(report)) == (name in REACHED)
    assert report["exit"] == 2
    assert node not in codes(after)
    assert node in reached(after)
    assert after["exit"] == 0


@pytest.mark.xdist_group("check-reach")
@pytest.mark.parametrize(
    ("name", "seconds", "severity"), [("clock-5-s-ahead", 5, "warn"), ("clock-30-s-behind", -30, "block")]
)
def test_clock_offset(reports: tuple[dict[str, Any], dict[str, Any]], name: str, seconds: int, severity: str) -> None:
    """A clock that is off is named, with its offset, and the more it is off the worse."""
    (finding,) = (each for each in reports[0]["findings"] if HOSTS[name] in each["nodes"])
    assert finding["severity"] == severity
    offset = next(node["clock_offset"] for node in reports[0]["nodes"] if node["name"] == HOSTS[name])
    assert abs(offset - seconds) < 1


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


def test_unknown_host_key(box: Sandbox) -> None:
    """A host key that was never seen is not trusted, not even when ssh_config says so."""
    box.head.run(["sh", "-c", "mv ~/.ssh/known_hosts ~/.ssh/kept; echo 'StrictHostKeyChecking no' > ~/.ssh/config"])
    try:
        report = check(box)
    finally:
        box.head.run(["sh", "-c", "rm ~/.ssh/config; mv ~/.ssh/kept ~/.ssh/known_hosts"])
    assert set(codes(report).values()) == {"reach-host-key-unknown"}
    assert reached(report) == set()


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
from aboard.doctor.reach import subject as reach
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.engine.check.check_cluster import check_cluster
from aboard.engine.check.check_observer import NullCheckObserver
drops = []
class Aloud(NullCheckObserver):
    def dialling(self, node, phase):
        if phase.startswith("dropped"):
            drops.append(node)
            if len(drops) == 1:
                print("dropped", flush=True)
report = asyncio.run(check_cluster(Cluster(nodes=(Node(name="n2"),)), (reach.SUBJECT,), check_observer=Aloud()))
print(*(finding.code for finding in report.findings))
"""


def test_the_head_is_a_node(box: Sandbox) -> None:
    """`localhost` beside other hosts is the head: reached without ssh, with the address that its peers reach."""
    done = box.head.run(["aboard", "check", "localhost", "n1", "--json", "--skip", "collective"], timeout=60)
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
        done = box.head.run(["aboard", "check", "ports.yaml", "--json", "--only", "reach"])
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
