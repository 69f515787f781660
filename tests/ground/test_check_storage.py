"""`aboard check` of storage on real hosts: what isn't there, isn't shared, is full or hangs is named, and mended.

Faults that do not disturb each other are on different nodes of one sandbox, which one check judges.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from broken_mounts import mount_killed_sshfs, mount_sshfs, mount_stopped_sshfs, mount_temporarily
from deadlines import within
from launching import build_sandbox

from aboard.sandbox import Sandbox
from aboard.sandbox.faults import Fault, inject_temporarily
from aboard.sandbox.faults.host.disk import DiskFull, PathMissing
from aboard.sandbox.host import Host

pytestmark = pytest.mark.ground

DRIVER = Path(__file__).parent / "drivers" / "some_subjects.py"
JOB = "/private/job"


def check(
    box: Sandbox, workdir: str | None, how: str = "full", *more: str, nodes: str = "n[1-4]"
) -> list[dict[str, Any]]:
    words = [*([f"cluster.workdir={workdir}"] if workdir else []), *more]
    done = box.head.run([sys.executable, "-c", DRIVER.read_text(), how, "storage", nodes, *words], timeout=90)
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


@dataclass(frozen=True, kw_only=True)
class Case:
    """A node and its directory's fault, what is said of it, and how its fix is carried out; else it is healed."""

    inject: Callable[[Sandbox, Host], AbstractContextManager[object]]
    named: tuple[str, str] | None = None
    # The quick check writes nothing.
    quick: bool = True
    seen: str = ""
    mend: Callable[[Sandbox, Host, str], object] | None = None


def put(fault: Fault) -> Callable[[Sandbox, Host], AbstractContextManager[None]]:
    return lambda box, host: inject_temporarily(box, host, fault)


def type_as_root(_: Sandbox, host: Host, fix: str) -> None:
    done = host.run(["sh", "-c", fix.splitlines()[0].removeprefix("sudo ")], root=True)
    assert done.returncode == 0, done.stderr


# One for each node of a sandbox; something is mounted on all of them, since a few that lack it would be named for that.
CASES = {
    # What the fix shows is for the user to delete.
    "full": Case(inject=put(DiskFull(path=JOB, free_mib=0)), named=("storage-full", "block")),
    "nearly-full": Case(inject=put(DiskFull(path=JOB, free_mib=10)), named=("storage-low", "warn")),
    # A disk with free bytes and no free file entries is full, too.
    "no-more-files": Case(
        inject=lambda _, host: mount_temporarily(host, "-t tmpfs -o nr_inodes=1,mode=777 none", JOB),
        named=("storage-inodes", "block"),
    ),
    "read-only": Case(
        inject=lambda _, host: mount_temporarily(host, "-t tmpfs -o ro none", JOB), named=("storage-read-only", "warn")
    ),
    "of-another-user": Case(
        inject=lambda _, host: mount_temporarily(host, "-t tmpfs -o mode=755 none", JOB),
        named=("storage-read-only", "warn"),
        seen="which user 0 owns",
    ),
    # Its server doesn't answer.
    "hangs": Case(
        inject=lambda _, host: mount_stopped_sshfs(host, JOB),
        named=("storage-dead-mount", "block"),
        seen=f"{JOB} (fuse.sshfs from ",
        mend=type_as_root,
    ),
    # It is no missing directory.
    "died": Case(
        inject=lambda _, host: mount_killed_sshfs(host, JOB),
        named=("storage-dead-mount", "block"),
        seen="Transport endpoint is not connected",
        mend=type_as_root,
    ),
    # A FUSE mount with direct_io can't be mapped.
    "no-mmap": Case(
        inject=lambda _, host: mount_sshfs(host, JOB, "direct_io"), named=("storage-no-mmap", "warn"), quick=False
    ),
    "sshfs": Case(inject=lambda _, host: mount_sshfs(host, JOB)),
    "healthy": Case(inject=lambda _, host: mount_temporarily(host, "-t tmpfs -o mode=777 none", JOB)),
}
HOSTS = {name: f"n{number}" for number, name in enumerate(CASES, 1)}


@pytest.fixture(scope="module")
def reports() -> Iterator[dict[str, list[dict[str, Any]]]]:
    """All cases on the nodes of one sandbox, checked quickly and in full, without the directory, and when mended."""
    every = f"n[1-{len(CASES)}]"
    with build_sandbox("storage", nodes=len(CASES)) as box, ExitStack() as mended:
        healed = ExitStack()
        for name, case in CASES.items():
            host = box.host(HOSTS[name])
            host.run(["mkdir", JOB])
            (mended if case.mend else healed).enter_context(case.inject(box, host))
        with healed:
            quick = check(box, JOB, "quick", nodes=every)
            # A mount that hangs is named within seconds.
            with within(15):
                full = check(box, JOB, nodes=every)
            unneeded = check(box, None, nodes=",".join(HOSTS[name] for name in ("hangs", "healthy")))
            for name, case in CASES.items():
                found = find(full, name)
                if case.mend and found:
                    case.mend(box, box.host(HOSTS[name]), found[0]["fix"])
            shown = [box.head.run(["sh", "-c", find(full, name)[0]["fix"]]) for name in ("full", "nearly-full")]
            assert [done.returncode for done in shown] == [0, 0]
        yield {"quick": quick, "full": full, "unneeded": unneeded, "after": check(box, JOB, nodes=every)}


def find(findings: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """What is said of the case's node, above info."""
    return [each for each in findings if HOSTS[name] in each["nodes"] and each["severity"] != "info"]


@pytest.mark.xdist_group("check-storage")
@pytest.mark.parametrize("name", CASES)
def test_each_fault_is_named_and_mended(reports: dict[str, list[dict[str, Any]]], name: str) -> None:
    """Each node has the finding of its own fault and no other, in both checks, and none once it is mended."""
    case, node = CASES[name], HOSTS[name]
    named = [(*case.named, [node])] if case.named else []
    found = find(reports["full"], name)
    assert told(found) == named
    assert case.seen in "".join(each["seen"] for each in found)
    assert told(find(reports["quick"], name)) == (named if case.quick else [])
    assert find(reports["after"], name) == []


@pytest.mark.xdist_group("check-storage")
def test_a_mount_that_hangs_and_is_not_needed(reports: dict[str, list[dict[str, Any]]]) -> None:
    """It is a warning, and nothing is said of the other node."""
    assert told(reports["unneeded"]) == [("storage-dead-mount", "warn", [HOSTS["hangs"]])]


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


def test_less_room_than_the_run_will_write(box: Sandbox, job: str) -> None:
    """A disk that looks well is too small for what `run:` says; the fix shows what fills it."""
    run = [f"run.output={job}/new/out", "run.writes=3GiB"]
    with inject_temporarily(box, box.host("n2"), DiskFull(path=job, free_mib=2048)):
        box.host("n2").run(["sh", "-c", f"head -c 30M /dev/zero > {job}/old.ckpt"])
        assert told(check(box, job, nodes="n[1-3]")) == []
        for how in ("quick", "full"):
            findings = check(box, job, how, *run, nodes="n[1-3]")
            assert told(findings) == [("storage-space", "block", ["n2"])]
        assert "the run will write 3 GiB" in findings[0]["seen"]
        assert f"tmpfs on {job}), 1 GiB short" in findings[0]["seen"]
        shown = box.head.run(["sh", "-c", findings[0]["fix"].splitlines()[0]])
        assert shown.returncode == 0
        assert "30M" in shown.stdout
        assert told(check(box, job, "quick", run[0], "run.writes=1GiB", nodes="n[1-3]")) == []
        box.host("n2").run(["rm", f"{job}/old.ckpt"])
    assert told(check(box, job, "quick", *run, nodes="n[1-3]")) == []


def test_where_the_run_may_not_write(box: Sandbox, job: str) -> None:
    """A directory that can't be made stops the run on the first node."""
    findings = check(box, job, "quick", "run.output=/opt/out", "run.writes=1MB")
    assert told(findings)[0] == ("storage-output", "block", ["n1"])
    assert [each["nodes"] for each in findings] == [["n1"], ["n2"], ["n3"], ["n4"]]
