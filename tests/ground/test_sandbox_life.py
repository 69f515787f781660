"""A sandbox comes, and goes without a trace, however it is ended."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deadlines import wait_until

from aboard.diagnoses import SandboxError
from aboard.sandbox import Host, Sandbox, saved_state, take_down_sandbox
from aboard.sandbox.faults.host.control_groups import ControlGroupFault, CpuQuota, FewTasks, MemoryLimit
from aboard.sandbox.faults.inject_and_heal import inject_fault
from aboard.sandbox.namespaces.helper_program import SOURCE

pytestmark = pytest.mark.ground

UP = f"""
import sys
sys.path.insert(0, {str(SOURCE)!r})
from aboard.sandbox import Sandbox
Sandbox.up(sys.argv[1], nodes=8, progress=lambda count: print(count, flush=True))
"""


def machine() -> dict[str, str]:
    """The machine's own network and mounts, and what else a root user could open or leave behind."""
    commands = (["ip", "-o", "link"], ["ip", "-o", "addr"], ["ip", "route", "show", "table", "all"])
    seen = {" ".join(argv): _output(argv) for argv in commands}
    rules = _output(["iptables-save"])
    seen["iptables"] = "\n".join(line for line in rules.splitlines() if not line.startswith("#"))
    seen["mounts"] = Path("/proc/self/mountinfo").read_text()
    settings = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "kernel/core_pattern", "kernel/pid_max")
    seen["settings"] = "".join(Path("/proc/sys", name).read_text() for name in settings)
    seen["listening"] = str(
        sorted(line.split()[1] for line in _output(["cat", "/proc/net/tcp"]).splitlines() if " 0A " in line)
    )
    seen["modes"] = str([oct(Path(path).stat().st_mode) for path in ("/", "/root", "/home", "/tmp", "/run", "/etc")])
    seen["netns"] = str(sorted(Path("/run/netns").glob("*")))
    return seen


def namespaces(pids: set[int]) -> set[str]:
    """The namespaces that these processes are in and the machine isn't."""
    return _namespaces(pids) - _namespaces({1})


def traces(name: str) -> list[str]:
    """Everything that is left of a sandbox: files, and processes that see its disks or its spec."""
    found = [str(path) for path in (saved_state.get_directory(name),) if path.exists()]
    for pid in _pids():
        for file in ("mountinfo", "cmdline"):
            try:
                if f"aboard-sandbox/{name}" in Path(f"/proc/{pid}/{file}").read_text():
                    found.append(f"{pid} {file}")
            except OSError:
                continue
    return found


@contextmanager
def building(name: str) -> Iterator[subprocess.Popen[str]]:
    """An `up` of 9 hosts in a process of its own, which says a line for each host."""
    with subprocess.Popen(
        [sys.executable, "-c", UP, name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        yield process


# The kernel gives the number of a namespace that is gone to the next one that somebody makes.
@pytest.mark.serial
def test_the_machine_is_untouched_and_nothing_is_left(box_name: str) -> None:
    """Network and mounts of the machine are the same before, during and after; all else is gone."""
    before = machine()
    box = Sandbox.up(box_name, nodes=4, fabric=True)
    inhabitants = {box.outer_init.pid, *(pid for host in box.hosts.values() for pid in host.pids())}
    theirs = namespaces(inhabitants)
    assert len(theirs) == 5 * (1 + 5), "a mount, net, PID, UTS and IPC namespace for the hull and each host"
    assert machine() == before
    box.down()
    assert machine() == before
    assert traces(box_name) == []
    # The hull was a child of the machine's init, which collects its exit status in its own time.
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inhabitants), 20)
    assert not theirs & _namespaces(_pids())


def test_nothing_of_our_environment_stays_behind(box_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of the one who builds a sandbox is in no process of it."""
    monkeypatch.setenv("ABOARD_TEST_TOKEN", "s3cr3t-8181")
    with Sandbox.up(box_name, nodes=1) as box, box.hosts["n1"].popen(["sleep", "8181"]) as process:
        wait_until(lambda: len(box.hosts["n1"].pids()) == 5, 20)
        pids = [box.outer_init.pid, process.pid, *box.head.pids(), *box.hosts["n1"].pids()]
        assert not [pid for pid in pids if "s3cr3t-8181" in Path(f"/proc/{pid}/environ").read_text()]
        process.kill()


def test_up_twice_is_the_same_sandbox(box_name: str) -> None:
    """The second finds the first; of another size, it says how to end it; down twice is fine."""
    first = Sandbox.up(box_name, nodes=2)
    second = Sandbox.up(box_name, nodes=2)
    assert (first.found, second.found, second.outer_init) == (False, True, first.outer_init)
    with pytest.raises(SandboxError) as caught:
        Sandbox.up(box_name, nodes=3)
    assert caught.value.code == "sandbox-differs"
    assert caught.value.fix == f"aboard sandbox down --name {box_name}"
    assert take_down_sandbox(box_name)
    assert not take_down_sandbox(box_name)
    first.down()
    assert traces(box_name) == []


_MOMENTS = [(moment, how) for moment in ("directory", "hull", "1", "5", "9") for how in (signal.SIGKILL, signal.SIGINT)]
_EVERY_TIME = {("hull", signal.SIGKILL), ("5", signal.SIGKILL), ("1", signal.SIGINT)}


@pytest.mark.parametrize(
    ("moment", "how"),
    [
        pytest.param(*each, id=f"{each[0]}-{each[1].name}", marks=[] if each in _EVERY_TIME else pytest.mark.nightly)
        for each in _MOMENTS
    ],
)
def test_an_up_that_is_killed_leaves_nothing_in_the_way(box_name: str, moment: str, how: signal.Signals) -> None:
    """Its hull ends with it at any moment, and the next `up` and `down` work."""
    directory = saved_state.get_directory(box_name)
    with building(box_name) as process:
        assert process.stdout is not None
        if moment == "directory":
            wait_until(directory.exists, 20)
        elif moment == "hull":
            wait_until((directory / "state.json").exists, 20)
        else:
            while process.stdout.readline().strip() != moment:
                assert process.poll() is None
        process.send_signal(how)
        ended = process.wait(timeout=20)
    there = saved_state.read_state(box_name)
    # Past the last host, the cluster may have been done before the signal came.
    if not (moment == "9" and there is not None and there.ready):
        assert ended != 0
        wait_until(lambda: not _mounted(box_name), 20)
        # Between two system calls of the lock an empty directory may stay; it is in nobody's way.
        assert how is signal.SIGKILL or not list(directory.glob("*"))
        with Sandbox.up(box_name, nodes=2) as box:
            assert not box.found
            assert box.hosts["n2"].run(["hostname"]).stdout == "n2\n"
    take_down_sandbox(box_name)
    wait_until(lambda: traces(box_name) == [], 20)


def test_a_temporary_sandbox_ends_with_the_process_that_built_it(box_name: str) -> None:
    """Even when that is killed, or lets go of it; and `up` never takes one over that somebody else left."""
    source = "import sys; from aboard.sandbox import Sandbox; box = Sandbox.up(sys.argv[1], nodes=1, temporary=True); "
    source += "print(flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", source, box_name]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as builder:
        assert builder.stdout is not None
        assert builder.stdout.readline() == b"\n"
        left = Sandbox.attach(box_name).outer_init
        assert left.alive()
        builder.kill()
    wait_until(lambda: not left.alive() and not _mounted(box_name), 20)
    dropped = Sandbox.up(box_name, nodes=1, temporary=True).outer_init
    gc.collect()
    wait_until(lambda: not dropped.alive(), 20)
    kept = Sandbox.up(box_name, nodes=1).outer_init
    with Sandbox.up(box_name, nodes=1, temporary=True) as box:
        assert not box.found
        assert not kept.alive()
    assert traces(box_name) == []


@pytest.mark.parametrize("fault", [MemoryLimit(), CpuQuota(), FewTasks()], ids=lambda fault: fault.name)
def test_a_control_group_ends_with_its_sandbox(box_name: str, fault: ControlGroupFault) -> None:
    """The groups of faults are gone after `down`, and after the next one if all was killed at once."""
    groups = Path("/sys/fs/cgroup")
    with Sandbox.up(box_name, nodes=1) as box:
        if not (groups / fault.tree).exists():
            pytest.skip("needs cgroup v1")
        inject_fault(box, box.host("n1"), fault)
        assert list(groups.rglob(f"aboard-{box_name}-n1"))
    assert list(groups.rglob(f"aboard-{box_name}-n1")) == []
    box = Sandbox.up(box_name, nodes=1)
    inject_fault(box, box.host("n1"), fault)
    assert box.outer_init.kill(timeout=20)
    assert take_down_sandbox(box_name)
    assert list(groups.rglob(f"aboard-{box_name}-n1")) == []


def test_sandboxes_share_no_user(box_name: str) -> None:
    """Each has a user id of its own: what one's user runs doesn't count against the process limit of the other's."""
    with Sandbox.up(f"{box_name}-a", nodes=1) as one, Sandbox.up(f"{box_name}-b", nodes=1) as other:
        assert one.crew_id != other.crew_id
        assert other.head.run(["id", "-u"]).stdout == f"{other.crew_id}\n"


def test_a_wreck_of_another_boot_is_cleared_away(box_name: str) -> None:
    """A state whose process numbers now belong to others kills nobody."""
    with subprocess.Popen(["sleep", "60"]) as bystander:
        box = Sandbox.up(box_name, nodes=1)
        written = (saved_state.get_directory(box_name) / "state.json").read_text()
        box.down()
        saved_state.get_directory(box_name).mkdir(parents=True)
        wreck = written.replace(f'"pid": {box.outer_init.pid}', f'"pid": {bystander.pid}')
        (saved_state.get_directory(box_name) / "state.json").write_text(wreck)
        with Sandbox.up(box_name, nodes=1) as again:
            assert not again.found
        assert bystander.poll() is None
        bystander.kill()
    assert traces(box_name) == []


def test_two_at_once_are_told_apart(box_name: str) -> None:
    """A second `up` during the first is told to wait."""
    with building(box_name) as process:
        wait_until((saved_state.get_directory(box_name) / "state.json").exists, 20)
        with pytest.raises(SandboxError) as caught:
            Sandbox.up(box_name, nodes=8)
        assert caught.value.code == "sandbox-busy"
        assert process.communicate(timeout=30)[0].split()[-1] == "9"
    assert Sandbox.up(box_name, nodes=8).found


@pytest.mark.nightly
def test_sixty_four_hosts_come_up_and_answer(box_name: str) -> None:
    """Each answers ssh with its own name; how soon they are up is a figure of bench/house.py."""
    with Sandbox.up(box_name, nodes=64) as box:
        assert _answers(box.head, 64) == {host.name for host in box.nodes}
    assert traces(box_name) == []


def _answers(head: Host, nodes: int) -> set[str]:
    # The key exchange costs most: the light one, and no more at once than sshd and two cores like.
    ssh = "ssh -o BatchMode=yes -o KexAlgorithms=curve25519-sha256 {} hostname"
    script = f"seq -f n%.0f {nodes} | xargs -P 8 -I{{}} {ssh}"
    return set(head.run(["sh", "-c", script], timeout=120).stdout.split())


def _mounted(name: str) -> bool:
    return any("mountinfo" in trace for trace in traces(name))


def _output(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def _pids() -> set[int]:
    return {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}  # noqa: PTH208 - only the names are wanted


def _namespaces(pids: set[int]) -> set[str]:
    found = set()
    for pid in pids:
        for kind in ("mnt", "net", "pid", "uts", "ipc"):
            try:
                found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))  # noqa: PTH115 - a link of /proc, which leads nowhere
            except OSError:
                continue
    return found
