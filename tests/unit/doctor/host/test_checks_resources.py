"""Room for a run: limits, shared memory, memory, cores, connections, GPUs, from recorded answers to findings."""

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import ReachedNode
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import CommandOutput, FileContents, Probe, ProbeCommand, ProbeParseError
from aboard.diagnoses import Diagnosis, Finding, Severity
from aboard.diagnoses.nodes import reach as reach_diagnoses, unanswered_probes
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.host import diagnoses, subject as host
from aboard.doctor.host.busy_gpus import GPU_PROCESSES, GpuProcess, parse_gpu_processes
from aboard.doctor.host.cgroup_quota import QUOTA, CgroupQuota, parse_quota
from aboard.doctor.host.conntrack import CONNTRACK, ConntrackTable, parse_conntrack
from aboard.doctor.host.cpu_cores import CORES, ONLINE_CORES, parse_online_cores
from aboard.doctor.host.limits import LIMITS, ResourceLimit, collect_limits, parse_limits
from aboard.doctor.host.memory import (
    AVAILABLE_MEMORY,
    MEMORY,
    MEMORY_CGROUPS,
    MemoryCgroup,
    parse_available_memory,
    parse_memory_cgroups,
)
from aboard.doctor.host.own_hostname import OWN_NAME, OwnHostname, parse_own_hostname
from aboard.doctor.host.shared_memory import SHM, ShmSpace, parse_shm_space
from aboard.doctor.reach import subject as reach
from aboard.doctor.reach.rank_shell import SHELL, ShellReady

GIB = 1 << 30
TABLE = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max processes             {processes}                96360                processes
Max open files            {files}                {most}              files
Max locked memory         8388608              unlimited            bytes
"""
NODES = (Node(name="n1", slots=4), Node(name="n2", slots=4))


def _table(files: object = 1048576, most: object = 1048576, processes: object = 96360) -> FileContents:
    return FileContents(files={"/proc/self/limits": TABLE.format(files=files, most=most, processes=processes)})


def _facts(answers: dict[str, Any], outcomes: dict[str, Any] | None = None, nodes: tuple[Node, ...] = NODES) -> Facts:
    met = ReachedNode(hostname="h", user="", address="10.0.0.7", python="", round_trip=0.01, clock_offset=0.0)
    return Facts(
        cluster=Cluster(nodes=nodes),
        contacts=dict.fromkeys((node.name for node in nodes), met),
        answers={name: {"n1": fact} for name, fact in answers.items()},
        outcomes=outcomes or {},
    )


def _judge(probe: Probe[Any], fact: object, **others: Any) -> list[Finding]:
    return host.SUBJECT.judge(_facts({probe.name: fact, **others}))


def _printed(stdout: str, code: int = 0, stderr: str = "") -> CommandOutput:
    return CommandOutput(code=code, stdout=stdout, stderr=stderr)


# -- limits


@pytest.mark.parametrize(
    ("files", "most", "fires", "fix"),
    [
        (1024, 1048576, True, "ulimit -n 65536"),
        (1024, 4096, True, "ulimit -n 4096"),
        (1024, 2048, True, "limits.d"),
        (4095, "unlimited", True, "ulimit -n 65536"),
        (4096, 4096, False, ""),
        ("unlimited", "unlimited", False, ""),
    ],
)
def test_few_open_files(files: object, most: object, fires: object, fix: str) -> None:
    """Below 4096 it warns; where the user may raise it alone, the fix needs no administrator."""
    findings = _judge(LIMITS, parse_limits(_table(files, most)))
    assert [finding.code for finding in findings] == (["host-open-files"] if fires else [])
    if findings:
        assert findings[0].severity is Severity.WARN
        assert findings[0].nodes == ("n1",)
        assert fix in findings[0].fix


def test_few_processes() -> None:
    """Threads count too, so hundreds are few."""
    (finding,) = _judge(LIMITS, parse_limits(_table(processes=500)))
    assert (finding.code, finding.severity) == ("host-processes", Severity.WARN)
    assert "500" in finding.seen


def test_locked_memory_is_for_others_to_judge() -> None:
    """8 MiB are fine without RDMA; the figure is there for the fabric's rules."""
    limits = parse_limits(_table())
    assert limits.locked == ResourceLimit(soft=8388608, hard=None)
    assert _judge(LIMITS, limits) == []


def test_a_setup_line_may_raise_a_limit() -> None:
    """What counts is what a rank has after its `setup` lines."""
    low = parse_limits(_table(1024))
    raised = ShellReady(
        python=Untrusted("/usr/bin/python3"), limits=Untrusted(_table(65536).files["/proc/self/limits"])
    )
    facts = _facts({LIMITS.name: low}, {SHELL.name: {"n1": raised}})
    assert collect_limits(facts)["n1"].files.soft == 65536
    assert host.SUBJECT.judge(facts) == []
    garbled = _facts(
        {LIMITS.name: low}, {SHELL.name: {"n1": ShellReady(python=Untrusted("x"), limits=Untrusted("what?"))}}
    )
    assert collect_limits(garbled)["n1"] == low


@pytest.mark.parametrize("text", ["", "Max open files", "Max open files  many  few  files", TABLE[:100], "\0" * 50])
def test_a_table_of_limits_that_can_not_be_read(text: str) -> None:
    """It is an unknown, never a zero and never no limit."""
    with pytest.raises(ProbeParseError):
        parse_limits(FileContents(files={"/proc/self/limits": text}))


# -- shared memory

DF = "Filesystem     1-blocks Used Available Capacity Mounted on\n{} {} {} {}  1% /dev/shm\n"


@pytest.mark.parametrize(
    ("size", "used", "fires"),
    [(64 << 20, 0, True), (GIB - 1, 0, True), (GIB, 0, False), (64 * GIB, GIB, False), (64 * GIB, 64 * GIB, True)],
)
def test_small_or_full_shared_memory(size: int, used: int, fires: object) -> None:
    """Docker's 64 MiB warn, and so does one that dead runs have filled."""
    shm = parse_shm_space(_printed(DF.format("tmpfs", size, used, size - used)))
    assert shm == ShmSpace(size=size, free=size - used)
    assert [finding.code for finding in _judge(SHM, shm)] == (["host-shm"] if fires else [])


def test_a_file_system_with_spaces_in_its_name() -> None:
    """The figures are counted from the end of the line."""
    assert parse_shm_space(_printed(DF.format("my shm 5", 10, 4, 6))) == ShmSpace(size=10, free=6)


@pytest.mark.parametrize(
    "answer",
    [
        _printed(""),
        _printed("tmpfs 1 2 3 4% /dev/shm"),
        _printed("Filesystem\ntmpfs - - - - /dev/shm"),
        _printed("", 1, "df: /dev/shm: No such file or directory"),
        CommandOutput(code=-9, stdout="", timed_out=True),
    ],
)
def test_a_df_that_can_not_be_read(answer: CommandOutput) -> None:
    """Unknown, with df's own words where it has some."""
    with pytest.raises(ProbeParseError):
        parse_shm_space(answer)


# -- memory

V2 = """\
/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope/memory.max:max
/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope/memory.events:oom_kill 0
/sys/fs/cgroup/user.slice/user-1000.slice/memory.max:{limit}
/sys/fs/cgroup/user.slice/user-1000.slice/memory.events:oom_kill {kills}
/sys/fs/cgroup/user.slice/memory.max:max
/sys/fs/cgroup/user.slice/memory.events:oom_kill 7
"""
V1 = """\
/sys/fs/cgroup/memory/slurm/uid_1000/job_7/memory.limit_in_bytes:{limit}
/sys/fs/cgroup/memory/slurm/uid_1000/job_7/memory.oom_control:oom_kill {kills}
/sys/fs/cgroup/memory/memory.limit_in_bytes:9223372036854771712
"""


@pytest.mark.parametrize("recorded", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize(
    ("limit", "kills", "codes"),
    [
        (16 * GIB, 0, ["host-memory-limit"]),
        (16 * GIB, 3, ["host-memory-limit", "host-oom-kills"]),
        (400 * GIB, 0, []),
        (400 * GIB, 3, ["host-oom-kills"]),
        (9223372036854771712, 3, []),
    ],
)
def test_a_control_group_far_below_the_machine(recorded: str, limit: int, kills: int, codes: list[str]) -> None:
    """Far below warns, and so do kills within a limit; kills without one were the machine's, perhaps a year ago."""
    groups = parse_memory_cgroups(_printed(recorded.format(limit=limit, kills=kills)))
    findings = _judge(MEMORY_CGROUPS, groups, **{MEMORY.name: 512 * GIB})
    assert [finding.code for finding in findings] == codes
    assert all(finding.severity is Severity.WARN for finding in findings)
    if "host-oom-kills" in codes:
        assert f"{kills} processes" in findings[-1].seen


def test_no_control_groups() -> None:
    """A host without them limits nothing."""
    assert parse_memory_cgroups(_printed("")) == ()
    assert _judge(MEMORY_CGROUPS, (), **{MEMORY.name: GIB}) == []
    assert parse_memory_cgroups(_printed("/g/memory.max:max\n")) == (
        MemoryCgroup(path=Untrusted("/g"), limit=None, kills=0),
    )


@pytest.mark.parametrize("line", ["memory.max:5", "/g/memory.max:lots", "/g/memory.max:" + "9" * 40, "\x1b[31m"])
def test_a_control_group_that_can_not_be_read(line: str) -> None:
    """One odd line makes the whole answer an unknown: the lowest limit might be in it."""
    with pytest.raises(ProbeParseError):
        parse_memory_cgroups(_printed(f"{line}\n"))


def test_memory_that_others_hold() -> None:
    """Below a twentieth of the machine it warns."""
    available = parse_available_memory(
        FileContents(files={"/proc/meminfo": "MemTotal: 1 kB\nMemAvailable:   1048576 kB\n"})
    )
    assert available == GIB
    (finding,) = _judge(AVAILABLE_MEMORY, available, **{MEMORY.name: 32 * GIB})
    assert (finding.code, finding.severity) == ("host-memory", Severity.WARN)
    assert _judge(AVAILABLE_MEMORY, 2 * GIB, **{MEMORY.name: 32 * GIB}) == []
    with pytest.raises(ProbeParseError):
        parse_available_memory(FileContents(files={"/proc/meminfo": "MemTotal: 1 kB\n"}))


# -- cores


@pytest.mark.parametrize(
    ("allowed", "online", "fires"), [(1, 64, True), (3, 64, True), (4, 64, False), (1, 1, False), (2, 2, False)]
)
def test_few_of_many_cores(allowed: int, online: int, fires: object) -> None:
    """One core, or fewer than ranks, of a machine that has more; a small machine is no fault."""
    findings = _judge(CORES, allowed, **{ONLINE_CORES.name: online})
    assert [finding.code for finding in findings] == (["host-affinity"] if fires else [])


def test_cores_of_the_machine() -> None:
    """From the kernel's list of those that are online."""
    assert parse_online_cores(FileContents(files={"/sys/devices/system/cpu/online": "0-63\n"})) == 64
    with pytest.raises(ProbeParseError):
        parse_online_cores(FileContents(files={"/sys/devices/system/cpu/online": "all\n"}))


# -- the node's own name


@pytest.mark.parametrize(
    ("printed", "addresses", "fires"),
    [
        ("n1\n127.0.1.1 STREAM n1\n127.0.1.1 DGRAM\n", ("127.0.1.1",), True),
        ("n1\n::1 STREAM n1\n10.0.0.7 STREAM\n", ("::1", "10.0.0.7"), True),
        ("n1\n10.0.0.7 STREAM n1\n127.0.1.1 STREAM\n", ("10.0.0.7", "127.0.1.1"), False),
        ("n1\nfe80::1%eth0 STREAM n1\n", ("fe80::1",), False),
        ("n1\n", (), True),
    ],
)
def test_own_name_on_loopback(printed: str, addresses: tuple[str, ...], fires: object) -> None:
    """The first address is what programs take."""
    own = parse_own_hostname(_printed(printed, 0 if addresses else 2))
    assert own == OwnHostname(name=Untrusted("n1"), addresses=addresses)
    findings = _judge(OWN_NAME, own)
    assert [(finding.code, finding.severity) for finding in findings] == (
        [("host-own-name", Severity.WARN)] if fires else []
    )
    if fires:
        assert "echo '10.0.0.7 n1'" in findings[0].fix


def test_a_node_s_own_name_is_a_name_to_sed(tmp_path: Path) -> None:
    """Whatever a node says its name is, the fix deletes the line with that name and does nothing else."""
    made = tmp_path / "made"
    name = f"x/d;e touch {made};/[y]*$\\z"
    finding = _judge(OWN_NAME, OwnHostname(name=Untrusted(name), addresses=("127.0.1.1",)))[0]
    _, _, _, edit, _ = shlex.split(finding.fix.partition("    # ")[0])
    hosts = f"127.0.1.1 {name}\n127.0.0.1 localhost x\n"
    ran = subprocess.run(["sed", edit], input=hosts, capture_output=True, text=True, check=True)
    assert (ran.stdout, made.exists()) == ("127.0.0.1 localhost x\n", False)


def test_alone_a_node_may_talk_to_itself() -> None:
    """With one node there is no peer that could be led astray."""
    own = OwnHostname(name=Untrusted("n1"), addresses=("127.0.0.1",))
    assert host.SUBJECT.judge(_facts({OWN_NAME.name: own}, nodes=NODES[:1])) == []


@pytest.mark.parametrize("printed", ["", "\n", "n1\nlots of noise\n", "n1\n\n", "n1\n10.0.0.999 STREAM\n"])
def test_a_getent_that_can_not_be_read(printed: str) -> None:
    """Unknown, never an address that is none."""
    with pytest.raises(ProbeParseError):
        parse_own_hostname(_printed(printed))


# -- GPUs and connections


@pytest.mark.parametrize(
    ("answer", "holders"),
    [
        (_printed("4242, 77980 MiB\n4242, 512 MiB\n99, [N/A]\n"), ((4242, 77980), (4242, 512), (99, None))),
        (_printed(""), ()),
        (_printed("No running processes found\n"), ()),
        (_printed("", 127, "can't start nvidia-smi: No such file or directory"), ()),
    ],
)
def test_who_holds_gpus(answer: CommandOutput, holders: tuple[tuple[int, int | None], ...]) -> None:
    """From what nvidia-smi prints; without it there is nobody."""
    found = parse_gpu_processes(answer)
    assert found == tuple(GpuProcess(pid=pid, mib=mib) for pid, mib in holders)
    findings = _judge(GPU_PROCESSES, found)
    assert [finding.code for finding in findings] == (["host-busy-gpu"] if holders else [])
    if findings:
        assert findings[0].severity is Severity.WARN
        assert findings[0].seen == "2 processes hold 78492 MiB of GPU memory: 4242, 99"


@pytest.mark.parametrize(
    "answer",
    [
        _printed("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9),
        _printed("4242; rm -rf /, 5 MiB\n"),
        CommandOutput(code=-9, stdout="", timed_out=True),
    ],
)
def test_an_nvidia_smi_that_can_not_be_read(answer: CommandOutput) -> None:
    """Unknown: nothing of it gets into a command."""
    with pytest.raises(ProbeParseError):
        parse_gpu_processes(answer)


def _conntrack(count: str, most: str) -> FileContents:
    root = "/proc/sys/net/netfilter/nf_conntrack_"
    return FileContents(files={f"{root}count": count, f"{root}max": most})


def test_a_full_table_of_connections() -> None:
    """Above nine tenths it warns; a kernel that tracks nothing has no such table."""
    table = parse_conntrack(_conntrack("60000\n", "65536\n"))
    assert table == ConntrackTable(count=60000, most=65536)
    (finding,) = _judge(CONNTRACK, table)
    assert (finding.code, finding.severity) == ("host-conntrack", Severity.WARN)
    assert "nf_conntrack_max=262144" in finding.fix
    assert _judge(CONNTRACK, ConntrackTable(count=100, most=65536)) == []
    assert parse_conntrack(FileContents(files={})) is None
    assert _judge(CONNTRACK, None) == []


@pytest.mark.parametrize(("count", "most"), [("", "5"), ("-1", "5"), ("5", "lots"), ("9" * 40, "5"), ("\u00b2", "5")])
def test_a_table_of_connections_that_can_not_be_read(count: str, most: str) -> None:
    """Unknown, never a guess."""
    with pytest.raises(ProbeParseError):
        parse_conntrack(_conntrack(count, most))


# -- stories


@pytest.mark.parametrize("subject", [reach.SUBJECT, host.SUBJECT], ids=lambda subject: str(subject.name))
def test_stories_are_whole(subject: Any) -> None:
    """Each code has one story, with a symptom, a reason and something to do, and no blank left to fill in."""
    codes = [story.code for story in subject.diagnoses]
    assert len(codes) == len(set(codes))
    for story in subject.diagnoses:
        assert story.symptoms
        assert all((story.title, story.explanation, story.remedy or story.steps))
        assert "{node}" not in story.remedy


PACKAGES = {host.SUBJECT: host, reach.SUBJECT: reach}
FAMILIES = {"host": diagnoses, "reach": reach_diagnoses, "unanswered_probes": unanswered_probes}


@pytest.mark.parametrize("subject", PACKAGES, ids=lambda subject: str(subject.name))
def test_every_code_has_its_story(subject: Any) -> None:
    """Each diagnosis that stands in a rule's source, each reason not to answer, each probe that may stay unknown."""
    folder = Path(str(PACKAGES[subject].__file__)).parent
    sources = [path.read_text() for path in folder.glob("*.py")]
    used = {name for source in sources for name in re.findall(r"\b(host|reach|unanswered_probes)\.([A-Z_]+)\b", source)}
    values = [getattr(FAMILIES[family], name) for family, name in used]
    codes = {value.code for value in values if isinstance(value, Diagnosis)}
    codes |= {f"unknown-{probe.name}" for probe in subject.probes}
    codes |= {f"reach-{reason.value}" for reason in UnreachableReason} if subject is reach.SUBJECT else set()
    assert codes == {story.code for story in subject.diagnoses}


# -- quotas


@pytest.mark.parametrize(
    ("lines", "cores", "tasks"),
    [
        ("", None, None),
        ("/sys/fs/cgroup/a/cpu.max:max 100000\n/sys/fs/cgroup/pids.max:max\n", None, None),
        ("/sys/fs/cgroup/a/cpu.max:150000 100000\n/sys/fs/cgroup/cpu.max:400000 100000\n", 1.5, None),
        ("/sys/fs/cgroup/cpu/j/cpu.cfs_quota_us:-1\n/sys/fs/cgroup/cpu/j/cpu.cfs_period_us:100000\n", None, None),
        ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us:50000\n/sys/fs/cgroup/cpu/cpu.cfs_period_us:100000\n", 0.5, None),
        ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us:50000\n", None, None),
        ("/sys/fs/cgroup/a/pids.max:512\n/sys/fs/cgroup/pids.max:9000\n", None, 512),
    ],
)
def test_quotas_of_both_versions_of_control_groups(lines: str, cores: float | None, tasks: int | None) -> None:
    """The lowest on the way up counts; no limit is none."""
    quota = parse_quota(_printed(lines))
    assert (quota.cores, quota.tasks) == (cores, tasks)


@pytest.mark.parametrize("line", ["/sys/fs/cgroup/cpu.max:", "/sys/fs/cgroup/cpu.max:a b", "grep: trouble"])
def test_a_quota_that_can_not_be_read_is_unknown(line: str) -> None:
    """Not taken for no limit."""
    with pytest.raises(ProbeParseError):
        parse_quota(_printed(line))


@pytest.mark.parametrize(
    ("quota", "code"),
    [
        (CgroupQuota(), None),
        (CgroupQuota(cores=4.0, cores_by=Untrusted("/sys/fs/cgroup")), None),
        (CgroupQuota(cores=1.5, cores_by=Untrusted("/sys/fs/cgroup")), "host-cpu-quota"),
        (CgroupQuota(tasks=1024, tasks_by=Untrusted("/sys/fs/cgroup")), None),
        (CgroupQuota(tasks=512, tasks_by=Untrusted("/sys/fs/cgroup")), "host-tasks"),
    ],
)
def test_quotas_that_are_too_small_for_four_ranks(quota: CgroupQuota, code: str | None) -> None:
    """Each is a warning with the group that sets it."""
    findings = _judge(QUOTA, quota, **{CORES.name: 64})
    assert [each.code for each in findings] == ([code] if code else [])
    if findings:
        assert (findings[0].severity, findings[0].nodes) == (Severity.WARN, ("n1",))
        assert "/sys/fs/cgroup" in findings[0].seen
    # A machine of one core has no more to give.
    assert _judge(QUOTA, CgroupQuota(cores=1.0), **{CORES.name: 1}) == []


def test_the_groups_of_this_machine_can_be_read() -> None:
    """Whatever it has, the script's answer is known to its parser."""
    question = QUOTA.question
    assert isinstance(question, ProbeCommand)
    done = subprocess.run(question.argv, capture_output=True, text=True, check=True, timeout=10)
    assert parse_quota(_printed(done.stdout))
