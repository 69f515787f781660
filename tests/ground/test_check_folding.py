"""`aboard check` where one fault shows in several subjects: the cause comes first, the rest stands below it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from aboard.sandbox import Sandbox
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.host.clock import ClockOffset
from aboard.sandbox.faults.host.disk import PathMissing
from aboard.sandbox.faults.host.processes import PortTaken
from aboard.sandbox.faults.host.resource_limits import SmallShm
from aboard.sandbox.faults.network.firewall import FirewallDrop
from aboard.sandbox.host import Host

pytestmark = pytest.mark.ground

LISTEN = """
import socket
ours = socket.create_server(("", 29500))
print("ready", flush=True)
ours.accept()
"""


def check(box: Sandbox, *options: str, workdir: str | None = None) -> tuple[int, list[dict[str, Any]]]:
    words = ["--set", f"cluster.workdir={workdir}"] if workdir else []
    done = box.head.run(["aboard", "check", "n[1-4]", "--json", *words, *options], timeout=120)
    assert done.stdout, done.stderr
    findings = [each for each in json.loads(done.stdout)["findings"] if each["severity"] != "info"]
    return done.returncode, findings


def told(findings: list[dict[str, Any]]) -> list[tuple[str, list[str], list[str]]]:
    """Each finding with the codes of what stands below it."""
    return [(each["code"], each["nodes"], [below["code"] for below in each["consequences"]]) for each in findings]


# A check of all pairs finds the same share by its files: test_check_storage.py has that in CI.
@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("--quick", "storage-not-mounted"),
        pytest.param("--all-pairs", "storage-not-shared", marks=pytest.mark.nightly),
    ],
)
def test_code_that_differs_because_its_share_is_missing(box: Sandbox, how: str, code: str) -> None:
    """The share is what is missing; a warning by itself, it stops a run as the code that differs does."""
    box.head.run(["sh", "-c", "echo 'print(1)' > /shared/train.py; echo '{}' > /shared/ds_config.json"])
    try:
        with inject_temporarily(box, box.host("n2"), PathMissing(path="/shared")):
            status, findings = check(box, how, workdir="/shared")
            assert told(findings) == [(code, ["n2"], ["software-code"])]
            assert (status, findings[0]["severity"]) == (2, "block")
        assert check(box, how, workdir="/shared") == (0, [])
    finally:
        box.head.run(["rm", "/shared/train.py", "/shared/ds_config.json"])


def test_a_port_that_a_leftover_holds(box: Sandbox) -> None:
    """The leftover is the cause, and ending it by --fix frees the port; a stranger's port is another matter."""
    n1 = box.host("n1")
    with listening(n1, ABOARD_RUN_ID="dead-1"):
        status, findings = check(box, "--quick")
        assert told(findings) == [("host-leftovers", ["n1"], ["network-port-taken"])]
        # A launch would find another port.
        assert (status, findings[0]["severity"]) == (0, "warn")
        assert check(box, "--quick", "--fix")[1][1:] == []
        assert check(box, "--quick") == (0, [])
    sleeper = n1.popen(["sleep", "600"], env={"ABOARD_RUN_ID": "dead-2"})
    try:
        with inject_temporarily(box, n1, PortTaken()):
            found = told(check(box, "--quick")[1])
        assert sorted(found) == [("host-leftovers", ["n1"], []), ("network-port-taken", ["n1"], [])]
    finally:
        sleeper.kill()
        sleeper.wait(timeout=10)


def test_two_faults_at_once(box: Sandbox) -> None:
    """On two nodes and on one: each is named on its own node, and neither hides the other."""
    n2, n3 = box.host("n2"), box.host("n3")
    with (
        inject_temporarily(box, n2, ClockOffset(seconds=30)),
        inject_temporarily(box, n3, FirewallDrop(ports="29500")),
        inject_temporarily(box, n3, SmallShm()),
    ):
        status, findings = check(box, "--quick")
    assert status == 2
    assert sorted(told(findings)) == [
        ("host-clock", ["n2"], []),
        ("host-shm", ["n3"], []),
        ("network-rendezvous-dropped", ["n3"], []),
    ]
    assert [each["severity"] for each in findings] == ["block", "block", "warn"]


@contextmanager
def listening(host: Host, **env: str) -> Iterator[None]:
    """A process of ours that has the rendezvous port."""
    argv = [sys.executable, "-c", LISTEN]
    with host.popen(argv, env=env, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            yield
        finally:
            program.kill()
