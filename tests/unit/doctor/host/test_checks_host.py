"""Host basics: recorded files to facts, and clocks to findings."""

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import ReachedNode
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts, Unknown, parse_answer
from aboard.core.probes.probe import CommandOutput, FileContents, Probe, ProbeFiles, ProbeParseError
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.host.cpu_cores import CORES, parse_allowed_cores
from aboard.doctor.host.memory import parse_total_memory
from aboard.doctor.host.subject import ACCELERATORS, PROBES, SUBJECT, parse_accelerators, parse_kernel


def _file(text: str) -> FileContents:
    return FileContents(files={"/a/file": text})


def _clock(offset: float, trip: float = 0.01) -> list[Finding]:
    met = ReachedNode(hostname="n1", user="", address="", python="", round_trip=trip, clock_offset=offset)
    return SUBJECT.judge(Facts(cluster=Cluster(nodes=(Node(name="n1"),)), contacts={"n1": met}))


@pytest.mark.parametrize(("allowed", "count"), [("0", 1), ("0-3", 4), ("0-3,8", 5), ("0-31,64-95", 64), ("5,7,9-9", 3)])
def test_cores_are_those_that_a_process_may_use(allowed: str, count: int) -> None:
    """From Cpus_allowed_list, which a container or Slurm narrows."""
    assert (
        parse_allowed_cores(_file(f"Name:\tpython3\nCpus_allowed:\tf\nCpus_allowed_list:\t{allowed}\nx:\t1\n")) == count
    )


@pytest.mark.parametrize("allowed", ["", "a", "1-", "-1", "3-1", "0-3,", "\u00b2", "9" * 30, "0x3", "1-2-3"])
def test_a_list_of_cores_that_can_not_be_read_is_no_number(allowed: str) -> None:
    """It is an unknown, never a guess."""
    with pytest.raises(ProbeParseError):
        parse_allowed_cores(_file(f"Cpus_allowed_list:\t{allowed}\n"))


def test_memory_is_in_bytes() -> None:
    """The file says kB and means KiB."""
    assert parse_total_memory(_file("MemTotal:       528280060 kB\nMemFree:        1 kB\n")) == 528280060 * 1024
    with pytest.raises(ProbeParseError):
        parse_total_memory(_file("MemTotal: lots kB"))


def test_the_kernel_is_one_line_fit_for_a_screen() -> None:
    """An empty file is no kernel, and escape codes are spelled out."""
    assert parse_kernel(_file("6.8.0-45-generic\n")) == "6.8.0-45-generic"
    assert parse_kernel(_file("\x1b[31m6.8\n")).visible() == r"\x1b[31m6.8"
    with pytest.raises(ProbeParseError):
        parse_kernel(_file("\n"))


def test_accelerators_are_listed_by_model() -> None:
    """One for each file of the driver's; a machine without the driver has none."""
    path = "/proc/driver/nvidia/gpus/0000:0{}:00.0/information"
    text = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 119\n"
    assert parse_accelerators(FileContents(files={path.format(1): text, path.format(2): "IRQ: 1"})) == (
        Untrusted("NVIDIA H100 80GB HBM3"),
        Untrusted("unknown model"),
    )
    assert parse_accelerators(FileContents(files={})) == ()


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_an_answer_of_another_kind_stays_unknown(probe: Probe[object]) -> None:
    """A probe that asked for files and got a command's output says so, and the other way round."""
    other = CommandOutput(code=0, stdout="") if isinstance(probe.question, ProbeFiles) else FileContents(files={})
    assert isinstance(parse_answer(probe, other), Unknown)


def test_a_file_that_is_missing_is_a_finding_with_a_command_to_look() -> None:
    """Unknown is a result: it warns, and says how to see for oneself."""
    facts = Facts(
        cluster=Cluster(nodes=(Node(name="n1", address="10.0.0.1"),)),
        contacts={},
        answers={CORES.name: {"n1": Unknown(why="the file is not there")}, ACCELERATORS.name: {"n1": ()}},
    )
    (finding,) = SUBJECT.judge(facts)
    assert finding.code == "unknown-cores"
    assert finding.severity is Severity.WARN
    assert finding.fix == "ssh 10.0.0.1 'cat /proc/self/status'"
    assert facts.of(ACCELERATORS) == {"n1": ()}


@pytest.mark.parametrize(
    ("offset", "trip", "severity"),
    [
        (0.5, 0.01, None),
        (-0.5, 0.01, None),
        (1.5, 0.01, Severity.WARN),
        (-1.5, 0.01, Severity.WARN),
        (1.5, 2.0, None),
        (15.0, 0.01, Severity.BLOCK),
        (-3600.0, 0.01, Severity.BLOCK),
        (10.2, 1.0, Severity.WARN),
    ],
)
def test_a_clock_is_judged_by_what_is_sure(offset: float, trip: float, severity: Severity | None) -> None:
    """What a long round trip can't tell apart is not held against it."""
    findings = _clock(offset, trip)
    assert [finding.severity for finding in findings] == ([severity] if severity else [])
    if severity:
        assert ("behind" if offset < 0 else "ahead of") in findings[0].seen
