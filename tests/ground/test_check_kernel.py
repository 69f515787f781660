"""`aboard check` and what the kernel counts: connections that it tracks, memory of a control group, and its victims."""

import json
from typing import Any

import pytest

from aboard.sandbox import Sandbox
from aboard.sandbox.faults import Fault, inject_temporarily
from aboard.sandbox.faults.host.control_groups import CpuQuota, FewTasks, MemoryLimit
from aboard.sandbox.faults.network.connection_tracking import ConntrackFull

pytestmark = pytest.mark.ground


def check(box: Sandbox, *options: str) -> list[dict[str, Any]]:
    done = box.head.run(["aboard", "check", "n[1-4]", "--json", "--only", "host", *options], timeout=90)
    assert done.stdout, done.stderr
    findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return findings


def told(findings: list[dict[str, Any]]) -> list[tuple[str, str, list[str]]]:
    return [(each["code"], each["severity"], each["nodes"]) for each in findings]


@pytest.mark.parametrize("how", [(), ("--quick",)], ids=["full", "quick"])
def test_tracked_connections(box: Sandbox, how: tuple[str, ...]) -> None:
    """A table that is nearly full is named with its numbers, on the host that has it; one that is half full is not."""
    with inject_temporarily(box, box.host("n2"), ConntrackFull()):
        (finding,) = findings = check(box, *how)
        assert told(findings) == [("host-conntrack", "warn", ["n2"])]
        count, most = (int(word) for word in finding["seen"].split() if word.isdecimal())
        assert 0.9 * most < count < most
    with inject_temporarily(box, box.host("n2"), ConntrackFull(percent=50)):
        assert check(box, *how) == []
    assert check(box, *how) == []


def test_a_small_control_group(box: Sandbox) -> None:
    """What ranks would get is told, not what the machine has; out of the group, all is well."""
    with inject_temporarily(box, box.host("n3"), MemoryLimit(mib=512)):
        (finding,) = findings = check(box)
        assert told(findings) == [("host-memory-limit", "warn", ["n3"])]
        assert "ranks can use 512 MiB of " in finding["seen"]
    assert check(box) == []


# The kernel counts its kills for the whole machine.
@pytest.mark.serial
def test_who_was_killed_for_memory(box: Sandbox) -> None:
    """The kernel's count of the group is told below the limit that it comes from."""
    with inject_temporarily(box, box.host("n3"), MemoryLimit(mib=512, killed=True)):
        (finding,) = findings = check(box)
        assert told(findings) == [("host-memory-limit", "warn", ["n3"])]
        assert told(finding["consequences"]) == [("host-oom-kills", "warn", ["n3"])]
        assert finding["consequences"][0]["seen"].startswith("1 process has been OOM-killed")
    assert check(box) == []


@pytest.mark.parametrize(
    ("fault", "code", "seen"),
    [
        (CpuQuota(cores=0.5), "host-cpu-quota", "can use 0.5 of "),
        (FewTasks(tasks=300), "host-tasks", "all ranks together can have 300 processes and threads"),
    ],
    ids=["time", "tasks"],
)
def test_quotas(box: Sandbox, fault: Fault, code: str, seen: str) -> None:
    """What a group leaves of the machine's time and processes is told, and who sets it."""
    with inject_temporarily(box, box.host("n4"), fault):
        (finding,) = findings = check(box, "--quick")
        assert told(findings) == [(code, "warn", ["n4"])]
        assert seen in finding["seen"]
        assert f"/aboard-{box.name}-n4" in finding["seen"]
    assert check(box, "--quick") == []


def test_a_memory_limit_beside_a_quota(box: Sandbox) -> None:
    """Two groups of one host are told both, and each can be taken away by itself."""
    n3 = box.host("n3")
    with inject_temporarily(box, n3, MemoryLimit()):
        with inject_temporarily(box, n3, CpuQuota()):
            assert {each["code"] for each in check(box)} == {"host-memory-limit", "host-cpu-quota"}
        assert [each["code"] for each in check(box)] == ["host-memory-limit"]
    assert check(box) == []
