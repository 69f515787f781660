"""Slow logins: the phase that took the time is named, and our own load is not held against a node."""

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import ReachedNode
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Finding, Severity
from aboard.doctor.reach.subject import SUBJECT

QUICK = {"connected": 0.01, "greeted": 0.05, "keys": 0.2, "logged-in": 0.3, "agent": 0.4}


def _judge(phases: dict[str, dict[str, float]]) -> list[Finding]:
    contacts = {
        name: ReachedNode(hostname=name, user="", address="", python="", round_trip=0.01, clock_offset=0.0, phases=ends)
        for name, ends in phases.items()
    }
    return SUBJECT.judge(Facts(cluster=Cluster(nodes=tuple(Node(name=name) for name in phases)), contacts=contacts))


def _late(phase: str, seconds: float) -> dict[str, float]:
    """A login in which one phase took longer, and all after it came later."""
    names = list(QUICK)
    return {name: end + (seconds if names.index(name) >= names.index(phase) else 0) for name, end in QUICK.items()}


@pytest.mark.parametrize("phase", QUICK)
def test_the_slow_phase_is_named(phase: str) -> None:
    """One finding, for the one phase that waited, on the one node that did."""
    (finding,) = _judge({"n1": QUICK, "n2": _late(phase, 5), "n3": QUICK})
    assert (finding.code, finding.severity, finding.nodes) == ("reach-slow-login", Severity.WARN, ("n2",))
    assert "took 5." in finding.seen
    assert not set("{}") & set(finding.fix)


def test_a_quick_login_is_no_finding() -> None:
    """Below three seconds in each phase it is quiet, however many phases there are."""
    assert _judge({"n1": QUICK, "n2": _late("keys", 2.5)}) == []
    assert _judge({"n1": {}}) == []


def test_our_own_load_is_not_held_against_nodes() -> None:
    """64 handshakes at once take us seconds; who is slower than the others by three more is still named."""
    crowd = {f"n{number}": _late("keys", 5) for number in range(64)}
    assert _judge(crowd) == []
    (finding,) = _judge({**crowd, "slow": _late("keys", 12)})
    assert finding.nodes == ("slow",)


def test_load_does_not_excuse_a_few_nodes() -> None:
    """Where all of four nodes wait ten seconds for a dead name server, that isn't our load."""
    findings = _judge({f"n{number}": _late("logged-in", 10) for number in range(4)})
    assert [finding.nodes for finding in findings] == [("n0",), ("n1",), ("n2",), ("n3",)]
    assert all("UseDNS" in finding.fix for finding in findings)


def test_a_phase_without_a_time_counts_for_the_next() -> None:
    """A master connection has no handshake, only a session."""
    (finding,) = _judge({"n1": {"logged-in": 4.0, "agent": 4.1}})
    assert finding.seen == "authentication took 4.0 s"
