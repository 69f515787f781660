"""The job and its nodes as slurmctld reports them: what would end the run, before it starts."""

from datetime import datetime

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import Contact, ReachedNode, UnreachedNode
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.probes.facts import Facts
from aboard.core.slurm.slurm_facts import (
    SlurmFacts,
    count_srun_ports,
    parse_job_times,
    parse_node_states,
    parse_srun_ports,
    parse_unmunge,
)
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.doctor.slurm.subject import SUBJECT

CLUSTER = Cluster(nodes=tuple(Node(name=name, transport=TransportKind.SLURM) for name in ("n1", "n2")))
MET = ReachedNode(hostname="n2", user="me", address="", python="3.11.0", round_trip=0.01, clock_offset=0.0)
# Slurm 22.05: `scontrol show node -o`, with the fields between that no rule reads left out.
NODES = """\
NodeName=n1 Arch=x86_64 OS=Linux 6.1 #1 SMP @0  RealMemory=24104 State=MIXED ThreadsPerCore=1 Partitions=debug  ExtSensorsTemp=n/s
NodeName=n2 Arch=x86_64 OS=Linux 6.1 #1 SMP @0  RealMemory=24104 State={state} ThreadsPerCore=1 Partitions=debug  ExtSensorsTemp=n/s Reason={reason} [root@2026-11-16T19:46:05]
"""  # noqa: E501 - as Slurm prints it
UNMUNGE = """\
STATUS:          {status}
ENCODE_HOST:     head (10.77.255.1)
ENCODE_TIME:     2026-11-16 19:57:55 +0000 (1794859075)
DECODE_TIME:     2026-11-16 20:07:56 +0000 ({decoded})
TTL:             300
"""
JOB = (
    "JobId=3 JobName=x JobState=RUNNING RunTime=00:00:24 TimeLimit=00:05:00 SubmitTime=2026-11-16T19:46:05"
    " StartTime=2026-11-16T19:46:05 EndTime={end} Deadline=N/A NodeList=n[1-2]"
)


def _judge(slurm: SlurmFacts, contact: Contact = MET) -> list[Finding]:
    return SUBJECT.judge(Facts(cluster=CLUSTER, contacts={"n1": MET, "n2": contact}, outcomes={"slurm": slurm}))


def _judge_node(state: str, reason: str, contact: Contact = MET) -> list[Finding]:
    return _judge(SlurmFacts(job=3, nodes=parse_node_states(NODES.format(state=state, reason=reason))), contact)


def test_a_node_that_works_is_no_finding() -> None:
    """A mixed or allocated node is as it should be."""
    assert _judge_node("ALLOCATED", "") == []


def test_a_drained_node_has_its_reason() -> None:
    """The administrator's own words are shown, and no escape sequence in them."""
    (finding,) = _judge_node("MIXED+DRAIN", "bad disk = /dev/sda\x1b[2J")
    assert (finding.code, finding.nodes, finding.severity) == ("slurm-node-drained", ("n2",), Severity.WARN)
    assert "bad disk = /dev/sda" in finding.seen
    assert "\x1b" not in finding.seen
    assert "state=resume" in finding.fix


def test_a_node_whose_prolog_failed_says_so() -> None:
    """Slurm drains such a node by itself."""
    (finding,) = _judge_node("IDLE+DRAIN", "Prolog error")
    assert finding.code == "reach-prolog"


@pytest.mark.parametrize("state", ["DOWN*", "MIXED*", "MIXED+NOT_RESPONDING", "MIXED+DRAIN+NOT_RESPONDING", "DOWN"])
def test_a_node_without_slurmd_stops_a_run_unless_it_was_reached(state: str) -> None:
    """Slurm's word is older than an agent that just replied."""
    gone = UnreachedNode(reason=UnreachableReason.NO_SLURMD, said="Communication connection failure")
    (finding,) = _judge_node(state, "Not responding", gone)
    assert (finding.code, finding.severity) == ("slurm-node-down", Severity.BLOCK)
    assert "reach-no-slurmd" in finding.diagnosis.leads_to
    (reached,) = _judge_node(state, "Not responding")
    assert reached.severity is Severity.WARN


@pytest.mark.parametrize(
    ("at", "limit", "warned"),
    [
        ("2026-11-16T19:50:00", "2026-11-16T19:51:05", True),
        ("2026-11-16T19:46:10", "2026-11-16T19:51:05", False),
        ("2026-11-17T18:45:00", "2026-11-17T18:50:05", True),
        ("2026-11-17T18:30:00", "2026-11-17T18:50:05", False),
        ("2026-11-17T18:30:00", "Unknown", False),
    ],
)
def test_a_job_that_ends_soon_is_a_warning(at: str, limit: str, *, warned: bool) -> None:
    """Two minutes are too few for any job, ten for a long one; a short job is not warned of from its start."""
    left, seconds = parse_job_times(JOB.format(end=limit), datetime.fromisoformat(at))
    codes = [finding.code for finding in _judge(SlurmFacts(job=3, seconds_left=left, limit_seconds=seconds))]
    assert codes == (["slurm-time-left"] if warned else [])


def test_a_suspended_job_is_named() -> None:
    """Its steps wait without a word, so that nodes seem to be silent."""
    (finding,) = _judge(SlurmFacts(job=3, is_suspended=True))
    assert (finding.code, finding.severity) == ("slurm-suspended", Severity.BLOCK)
    assert "reach-silent" in finding.diagnosis.leads_to


def test_few_ports_are_a_warning() -> None:
    """A range of forty is too small even for two nodes; a range that is not set is any free port."""
    (finding,) = _judge(SlurmFacts(job=3, srun_ports=parse_srun_ports("SrunPortRange           = 60001-60040\n")))
    assert finding.code == "slurm-port-range"
    assert "40 ports" in finding.seen
    assert parse_srun_ports("SrunPortRange           = 0-0\n") is None
    assert count_srun_ports(64) == 2 * 6 + 64
    assert count_srun_ports(1000) == 2 * (15 * 6 + 4) + 64


def test_a_clock_that_munge_rejects_is_the_cause() -> None:
    """The reply has both times, so the offset is known; a credential that munge accepts is no finding."""
    reply = parse_unmunge(UNMUNGE.format(status="Expired credential (15)", decoded=1794859676))
    assert reply is not None
    (finding,) = _judge(SlurmFacts(job=3, munge={"n2": reply}))
    assert (finding.code, finding.nodes) == ("host-clock", ("n2",))
    assert "its clock is 10 min 1 s ahead of this machine's" in finding.seen
    assert "reach-slurmd-refused" in finding.diagnosis.leads_to
    (here,) = _judge(SlurmFacts(job=3, munge={"n1": reply, "n2": reply}))
    assert "this machine's clock is 10 min 1 s behind theirs" in here.seen
    fine = parse_unmunge(UNMUNGE.format(status="Success (0)", decoded=1794859075))
    assert fine is not None
    assert _judge(SlurmFacts(job=3, munge={"n2": fine})) == []
    assert parse_unmunge("unmunge: Error: Failed to access") is None


def test_without_a_word_from_slurm_nothing_has_passed() -> None:
    """The subject is not tested, with scontrol's own message."""
    facts = Facts(cluster=CLUSTER, contacts={}, outcomes={"slurm": SlurmFacts(job=3, problem="no slurmctld")})
    assert SUBJECT.judge(facts) == []
    assert SUBJECT.untested(facts) == {"n1": "no slurmctld", "n2": "no slurmctld"}


def test_a_cluster_over_ssh_has_no_such_subject() -> None:
    """Only nodes that srun reaches are Slurm's."""
    assert SUBJECT.applies(CLUSTER)
    assert not SUBJECT.applies(Cluster(nodes=(Node(name="n1"),)))
