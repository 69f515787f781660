"""`aboard check` on hosts that lack room for a run: the right code on the right node, and its fix makes it green.

Faults that do not disturb each other are on different nodes of one sandbox, which one check judges.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deadlines import wait_until
from launching import build_sandbox

from aboard.agent import process_tree
from aboard.sandbox import Sandbox
from aboard.sandbox.faults import Fault, heal_all_faults, inject_fault, inject_temporarily
from aboard.sandbox.faults.host.control_groups import CpuQuota, FewTasks, MemoryLimit
from aboard.sandbox.faults.host.resource_limits import LowLimits, SmallShm
from aboard.sandbox.faults.host.ssh_server import SshdSlow
from aboard.sandbox.faults.network.connection_tracking import ConntrackFull
from aboard.sandbox.faults.network.name_resolution import OwnNameOnLoopback
from aboard.sandbox.host import Host
from aboard.sandbox.host_setup.boot_host import SSHD_PID_FILE

pytestmark = pytest.mark.ground

SUBJECTS = ("--only", "reach", "--only", "host")


def check(box: Sandbox, *options: str, nodes: tuple[str, ...]) -> list[dict[str, Any]]:
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


@dataclass(frozen=True, kw_only=True)
class Case:
    """A node with a fault of its own, what is said of it, and how its fix is carried out; else the fault is healed."""

    faults: tuple[Fault, ...] = ()
    typed: str = ""
    setup: str = ""
    named: tuple[tuple[str, str], ...] = ()
    seen: str = ""
    fix: str = ""
    mend: Callable[[Host, str], object] | None = None
    # What `setup` is in the second check, with the fix itself for {}.
    new_setup: str = ""

    def inject(self, box: Sandbox, host: Host) -> None:
        for fault in self.faults:
            inject_fault(box, host, fault)
        if self.typed:
            assert host.run(["sh", "-c", self.typed], root=True).returncode == 0


def type_lines(lines: int) -> Callable[[Host, str], None]:
    return lambda host, fix: carry_out(host, fix, lines=lines)


def restart_sshd(host: Host, _: str) -> None:
    host.sshd_restart()


def bind_sshd(cores: str) -> str:
    return f'read -r pid < {SSHD_PID_FILE}; taskset -pc {cores} "$pid"'


# One for each node of a sandbox.
CASES = {
    "small-shm": Case(faults=(SmallShm(mib=64),), named=(("host-shm", "warn"),), seen="64 MiB", mend=type_lines(1)),
    "own-name-on-loopback": Case(
        faults=(OwnNameOnLoopback(),), named=(("host-own-name", "warn"),), seen="127.0.1.1", mend=type_lines(2)
    ),
    # An sshd that was started with low limits hands them to ranks.
    "few-open-files": Case(
        faults=(LowLimits(),),
        named=(("host-open-files", "warn"),),
        fix="systemctl restart ssh",
        mend=restart_sshd,
    ),
    "few-processes": Case(
        faults=(LowLimits(nproc=800),),
        named=(("host-processes", "warn"),),
        fix="systemctl restart ssh",
        mend=restart_sshd,
    ),
    # Where the hard limit allows it, a `setup` line is the fix, and the check sees the limits after that line.
    "low-soft-limit": Case(
        typed=f'read -r pid < {SSHD_PID_FILE}; prlimit --pid "$pid" --nofile=1000:',
        named=(("host-open-files", "warn"),),
        fix="setup: ",
        new_setup="{}",
    ),
    # It binds all that it starts.
    "sshd-on-one-core": Case(
        typed=bind_sshd("0"),
        named=(("host-affinity", "warn"),),
        mend=lambda host, _: host.run(["sh", "-c", bind_sshd(f"0-{(os.cpu_count() or 1) - 1}")], root=True),
    ),
    # Named with the phase that it held up.
    "slow-sshd": Case(faults=(SshdSlow(seconds=5),), named=(("reach-slow-login", "warn"),), seen="sshd banner"),
    # `module` is not there in the shell that ranks get.
    "setup-line-that-fails": Case(
        typed="echo 'module() { :; }' > /etc/profile.d/modules.sh",
        setup="setup: ['true', module load cuda]",
        named=(("reach-setup", "block"),),
        seen="line 2 of `setup`, `module load cuda`, failed: module: command not found",
        fix=". /etc/profile.d/modules.sh",
        new_setup="setup: ['true', . /etc/profile.d/modules.sh, module load cuda]",
    ),
    "conntrack-nearly-full": Case(faults=(ConntrackFull(),), named=(("host-conntrack", "warn"),)),
    "conntrack-half-full": Case(faults=(ConntrackFull(percent=50),)),
    # What ranks would get is told, not what the machine has.
    "memory-limit": Case(
        faults=(MemoryLimit(mib=512),), named=(("host-memory-limit", "warn"),), seen="ranks can use 512 MiB of "
    ),
    "cpu-quota": Case(faults=(CpuQuota(cores=0.5),), named=(("host-cpu-quota", "warn"),), seen="can use 0.5 of "),
    "few-tasks": Case(
        faults=(FewTasks(tasks=300),),
        named=(("host-tasks", "warn"),),
        seen="all ranks together can have 300 processes and threads",
    ),
    "memory-limit-and-quota": Case(
        faults=(MemoryLimit(), CpuQuota()), named=(("host-cpu-quota", "warn"), ("host-memory-limit", "warn"))
    ),
    "healthy": Case(),
}
HOSTS = {name: f"n{number}" for number, name in enumerate(CASES, 1)}
# Counted by the kernel, for the quick check too.
QUICK = ("conntrack-nearly-full", "conntrack-half-full", "cpu-quota", "few-tasks", "healthy")


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What checks said of each node: with its fault, the same in a quick check of some, and when all are mended."""

    box: Sandbox
    before: dict[str, list[dict[str, Any]]]
    quick: dict[str, list[dict[str, Any]]]
    after: dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def judgement() -> Iterator[Judgement]:
    """All cases on the nodes of one sandbox, and one check of them before they are mended and one after."""
    with build_sandbox("host", nodes=len(CASES)) as box:
        for name, case in CASES.items():
            case.inject(box, box.host(HOSTS[name]))
        setups = {name: case.setup for name, case in CASES.items()}
        before = sort_by_case(check(box, nodes=(write_cluster(box, setups),)))
        quick = sort_by_case(check(box, "--quick", nodes=tuple(HOSTS[name] for name in QUICK)))
        for name, case in CASES.items():
            fix = before[name][0]["fix"] if before[name] else ""
            if case.mend:
                case.mend(box.host(HOSTS[name]), fix)
            else:
                heal_all_faults(box, box.host(HOSTS[name]))
            setups[name] = case.new_setup.replace("{}", fix.partition("    #")[0])
        after = sort_by_case(check(box, nodes=(write_cluster(box, setups),)))
        yield Judgement(box=box, before=before, quick=quick, after=after)


def write_cluster(box: Sandbox, setups: dict[str, str]) -> str:
    """A cluster file on the head."""
    nodes = [f"{{name: {HOSTS[name]}{f', {setup}' if setup else ''}}}" for name, setup in setups.items()]
    box.head.run(["sh", "-c", "cat > setup.yaml"], input=f"cluster:\n  nodes: [{', '.join(nodes)}]\n")
    return "setup.yaml"


def sort_by_case(findings: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [each for each in findings if node in each["nodes"]] for name, node in HOSTS.items()}


@pytest.mark.xdist_group("check-host")
@pytest.mark.parametrize("name", CASES)
def test_each_fault_is_named_and_mended(judgement: Judgement, name: str) -> None:
    """Each node has the findings of its own fault and no other, and none once its fix was carried out."""
    case, node = CASES[name], HOSTS[name]
    found = judgement.before[name]
    assert sorted(told(found)) == [(code, severity, [node]) for code, severity in case.named]
    assert case.seen in "".join(each["seen"] for each in found)
    assert case.fix in "".join(each["fix"] for each in found)
    if name in QUICK:
        assert told(judgement.quick[name]) == told(found)
    assert judgement.after[name] == []


@pytest.mark.xdist_group("check-host")
def test_the_numbers_of_tracked_connections(judgement: Judgement) -> None:
    """A table that is nearly full is named with them."""
    (finding,) = judgement.before["conntrack-nearly-full"]
    count, most = (int(word) for word in finding["seen"].split() if word.isdecimal())
    assert 0.9 * most < count < most


@pytest.mark.xdist_group("check-host")
@pytest.mark.parametrize("name", ["cpu-quota", "few-tasks"])
def test_the_group_that_sets_a_quota(judgement: Judgement, name: str) -> None:
    """Who leaves so little of the machine is told."""
    (finding,) = judgement.before[name]
    assert f"/aboard-{judgement.box.name}-{HOSTS[name]}" in finding["seen"]


# The kernel counts its kills for the whole machine.
@pytest.mark.serial
def test_who_was_killed_for_memory(box: Sandbox) -> None:
    """The kernel's count of the group is told below the limit that it comes from."""
    with inject_temporarily(box, box.host("n3"), MemoryLimit(mib=512, killed=True)):
        (finding,) = findings = check(box, nodes=("n2", "n3"))
        assert told(findings) == [("host-memory-limit", "warn", ["n3"])]
        assert told(finding["consequences"]) == [("host-oom-kills", "warn", ["n3"])]
        assert finding["consequences"][0]["seen"].startswith("1 process has been OOM-killed")
    assert check(box, nodes=("n2", "n3")) == []


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
    """A run with a supervisor is left alone; without any agent, its leftovers are named, and ended by --fix."""
    n2 = box.host("n2")
    before, files = set(n2.pids()), n2.run(["ls", "-A", "/tmp"]).stdout
    with box.head.popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as head:
        assert head.stdin is not None
        assert head.stdout is not None
        assert head.stdout.readline() == "ready\n"
        wait_until(lambda: len(sleepers(n2)) == 2, 20)
        assert told(check(box, "--fix", nodes=("n2",))) == [("host-active-run", "warn", ["n2"])]
        assert len(sleepers(n2)) == 2
        # Whoever is left of head, bridge, guard and supervisor would clean up.
        head.kill()
        kill_agents(n2)
    wait_until(lambda: len(sleepers(n2)) == 1, 20)
    (finding,) = findings = check(box, nodes=("n2",))
    assert told(findings) == [("host-leftovers", "warn", ["n2"])]
    assert "1 process from run left-1" in finding["seen"]
    assert "aboard check --fix" in finding["fix"]
    assert told(check(box, "--fix", nodes=("n2",))) == [("host-leftovers-ended", "info", ["n2"])]
    wait_until(lambda: set(n2.pids()) <= before, 20)
    assert n2.run(["ls", "-A", "/tmp"]).stdout == files
    assert check(box, nodes=("n2",)) == []


def test_ranks_of_another_launcher(box: Sandbox) -> None:
    """One that outlived its launcher warns, is not ended by --fix, and is by the fix that is shown."""
    n1 = box.host("n1")
    start = "RANK=0 MASTER_ADDR=n1 setsid sleep 7200 </dev/null >/dev/null 2>&1 &"
    n1.run(["sh", "-c", start])
    wait_until(lambda: len(sleepers(n1)) == 1, 20)
    try:
        (finding,) = findings = check(box, "--fix", nodes=("n1",))
        assert told(findings) == [("host-other-ranks", "warn", ["n1"])]
        assert len(sleepers(n1)) == 1
        assert n1.run(["sh", "-c", finding["fix"].splitlines()[1]]).returncode == 0
        wait_until(lambda: not sleepers(n1), 20)
        assert check(box, nodes=("n1",)) == []
    finally:
        for pid in sleepers(n1):
            os.kill(pid, signal.SIGKILL)


def test_fix_needs_its_subject(box: Sandbox) -> None:
    """Asked to end what nobody looks for, the check refuses instead of doing nothing."""
    done = box.head.run(["aboard", "check", "n1", "--fix", "--skip", "host"])
    assert done.returncode == 3
    assert "check-fix" in done.stderr


def kill_agents(host: Host) -> None:
    """Kills bridge, guard and supervisor such that none can sweep up after another."""
    agents = sorted(pid for pid in host.pids() if "-ISc" in words(pid))
    # Parents first: a guard would wake a supervisor that is stopped.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        process_tree.send_signal(agents, number)


def sleepers(host: Host) -> list[int]:
    return [pid for pid in host.pids() if words(pid)[:2] == ["sleep", "7200"]]


def words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return []
