"""More verdicts on a run that lives: what the fault bench had missed, each with what it must not be taken for."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from evidence_builders import NOW, at_collective, evidence, in_collective, process, stack, stuck_socket

from aboard.core.evidence.follow_up_queries import build_follow_up_queries
from aboard.core.evidence.node_snapshot import PingResult, ProcessGroupRecord, RankSnapshot, StoreRequest, TcpConnection
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import RuledOut, RuleResult
from aboard.core.run.events import Measurement
from aboard.core.run.rank_phases import Phase
from aboard.diagnoses import Finding, Severity
from aboard.doctor.apply_rules import judge_by_rules
from aboard.doctor.hang.undetermined import report_internal_error
from aboard.doctor.judge_evidence import LIVE_RULES, judge_evidence

IMPORTS = stack(("/x/licensed.py", 1, "<module>"), ("<frozen importlib._bootstrap>", 9, "_load"))
JOINING = StoreRequest(host="10.0.0.1", port=29500, world=8)


def first(given: Evidence) -> Finding:
    why = judge_evidence(given)
    assert why.findings, why.ruled_out
    return why.findings[0]


def eight(**others: RankSnapshot) -> dict[int, RankSnapshot]:
    return {rank: in_collective() for rank in range(8)} | {int(name[1:]): seen for name, seen in others.items()}


def waiting_for(late: RankSnapshot, seconds: float) -> Evidence:
    """Seven have come to the store, and rank 6 is in an import for so long."""
    ranks = {rank: RankSnapshot(process=process(), joining=JOINING) for rank in range(8)} | {6: late}
    given = evidence(ranks, default=Phase.TORCH, phases={6: Phase.PYTHON}, quiet=seconds)
    given.run.generation.children["n4", "6"].since = NOW - seconds
    return given


def test_an_import_that_only_waits_is_named_before_one_that_works() -> None:
    """One that computes or reads a disk is given longer, and then told as slow, not as stuck."""
    idle = RankSnapshot(process=process(), stack=IMPORTS)
    assert first(waiting_for(idle, 15.0)).severity is Severity.INFO
    found = first(waiting_for(idle, 22.0))
    assert (found.code, found.severity, found.ranks) == ("init-import-slow", Severity.WARN, (6,))
    for states in ("RRRRRRRR", "DDSDDSDD"):
        works = RankSnapshot(process=process(states=states), stack=IMPORTS)
        assert first(waiting_for(works, 22.0)).severity is Severity.INFO
        assert first(waiting_for(works, 28.0)).severity is Severity.WARN


def test_a_store_that_refuses_although_it_listens() -> None:
    """Rank 0 has its port open: whoever says no is a firewall on its node, if all others hear it."""
    listens = TcpConnection(local="0.0.0.0:29500", remote="0.0.0.0:0", state="LISTEN")
    ranks = {rank: RankSnapshot(process=process(), joining=JOINING) for rank in range(8)}
    master = replace(JOINING, master=True)
    ranks |= {0: RankSnapshot(process=process(), joining=master, sockets=(listens,))}
    nodes: dict[str, Any] = {name: {"dials": {("10.0.0.1", 29500): "refused"}} for name in ("n2", "n3", "n4")}
    found = first(evidence(ranks, default=Phase.TORCH, phases={0: Phase.STORE}, nodes=nodes))
    assert (found.code, found.nodes) == ("init-store-refused", ("n1",))
    assert "Rank 0 is listening there" in found.why


def test_a_refusal_that_may_be_older_than_the_store_is_asked_for_again() -> None:
    """Nodes dial while rank 0 begins to listen: the second answer counts, and a connection is not repeated."""
    listens = TcpConnection(local="0.0.0.0:29500", remote="0.0.0.0:0", state="LISTEN")
    ranks = {rank: RankSnapshot(process=process(), joining=JOINING) for rank in range(1, 8)}
    ranks[0] = RankSnapshot(process=process(), joining=replace(JOINING, master=True), sockets=(listens,))
    nodes: dict[str, Any] = {f"n{number}": {"dials": {("10.0.0.1", 29500): "refused"}} for number in (1, 2, 3)}
    nodes["n4"] = {"dials": {("10.0.0.1", 29500): "connected"}}
    queries = build_follow_up_queries(evidence(ranks, default=Phase.TORCH, nodes=nodes))
    assert set(queries) == {"n1", "n2", "n3"}
    assert {target for query in queries.values() for target in query.targets} == {("10.0.0.1", 29500)}


@pytest.mark.parametrize(("seconds", "named"), [(0.1, False), (9.0, True), (None, True)])
def test_rank_0_has_the_time_to_listen(seconds: float | None, *, named: bool) -> None:
    """The others have waited long for rank 0, which has just come to its store; a record may not know since when."""
    ranks = {rank: RankSnapshot(process=process(), joining=JOINING) for rank in range(1, 8)}
    ranks[0] = RankSnapshot(process=process(), joining=replace(JOINING, master=True, seconds=seconds))
    nodes: dict[str, Any] = {name: {"dials": {("10.0.0.1", 29500): "refused"}} for name in ("n2", "n3", "n4")}
    why = judge_evidence(evidence(ranks, default=Phase.TORCH, nodes=nodes, quiet=20.0))
    assert ("init-store-refused" in [finding.code for finding in why.findings]) == named


def test_two_that_join_as_the_same_rank() -> None:
    """The one that took another's number is named, and the number that is missing; a script may renumber all."""

    def joined(numbers: list[int]) -> Evidence:
        ranks = {at: RankSnapshot(process=process(), joining=replace(JOINING, rank=n)) for at, n in enumerate(numbers)}
        return evidence(ranks, default=Phase.STORE)

    found = first(joined([0, 1, 2, 3, 5, 5, 6, 7]))
    assert (found.code, found.nodes, found.ranks) == ("init-rank-twice", ("n3",), (4,))
    assert "no process is joining as rank 4" in found.seen
    assert judge_evidence(joined([7, 6, 5, 4, 3, 2, 1, 0])).findings == ()


def test_a_no_that_tcp_does_not_take_for_one() -> None:
    """Connections are still tried, and some node's own try was rejected: that is no silence, for nobody."""
    syn = TcpConnection(local="10.0.0.3:5", remote="10.0.0.1:29500", state="SYN_SENT", resent=2)
    ranks = {at: RankSnapshot(process=process(), joining=JOINING, sockets=(syn,)) for at in range(1, 8)}
    nodes: dict[str, Any] = {name: {"dials": {("10.0.0.1", 29500): "rejected"}} for name in ("n2", "n3")}
    given = evidence({0: RankSnapshot(process=process())} | ranks, default=Phase.TORCH, nodes=nodes)
    found = first(given)
    assert (found.code, found.ranks) == ("init-store-rejected", (1, 2, 3, 4, 5, 6, 7))


def test_a_rank_that_is_left_alone_and_does_not_end() -> None:
    """All others have finished: what it waits for is told, once it had time to finish as well."""
    alone = replace(
        in_collective(), groups=(at_collective(19, over=True),), stack=stack(("/home/me/train.py", 9, "main")),
        process=process(call="futex"),
    )  # fmt: skip
    for seconds, severity in ((5, Severity.INFO), (12, Severity.BLOCK)):
        given = evidence({rank: RankSnapshot() for rank in range(8)} | {6: alone}, quiet=float(seconds))
        for (_node, name), child in given.run.generation.children.items():
            if name != "6":
                child.state, child.code, child.at = "exited", 0, NOW - seconds
        found = first(given)
        assert (found.severity, found.nodes, found.ranks) == (severity, ("n4",), (6,))
    assert found.code == "hang-lock"
    assert "7 ranks have finished" in found.seen


def test_a_rank_that_takes_two_groups_the_other_way_round() -> None:
    """It has never used the group in which seven wait, nor they its own: the one is named, not the seven."""
    unused = ProcessGroupRecord(name="2", what="", enqueued=-1, completed=-1)
    most = in_collective(groups=(replace(at_collective(1), name="1"), unused))
    for at in (NOW - 9, NOW - 11):
        entry = replace(at_collective(1, at=at), name="2")
        odd = in_collective(groups=(replace(unused, name="1"), entry))
        found = first(evidence(dict.fromkeys(range(8), most) | {5: odd}))
        assert (found.code, found.nodes, found.ranks) == ("hang-order", ("n3",), (5,))


def test_a_way_that_loses_packets_is_not_a_cut_one() -> None:
    """Some get through and some don't: the node to which most are lost is named, whoever noticed it first."""
    ranks = eight(r0=in_collective(sockets=(stuck_socket("10.0.0.1:1", "10.0.0.4:2"),)))
    lossy, well = PingResult(small=True, large=True, sent=4, lost=2), PingResult(small=True, large=True)
    echoes: dict[str, Any] = {
        "n1": {"echoes": {"10.0.0.4": lossy}},
        "n2": {"echoes": {"10.0.0.4": lossy, "10.0.0.1": well}},
        "n3": {"echoes": {"10.0.0.4": lossy, "10.0.0.1": well}},
        "n4": {"echoes": {"10.0.0.1": replace(lossy, sent=3, lost=1)}},
    }
    found = first(evidence(ranks, nodes=echoes))
    assert (found.code, found.nodes) == ("slow-link", ("n4",))
    assert "6 of 12 packets to it were lost" in found.seen


def test_a_node_that_is_rationed_is_known_by_its_own_counter() -> None:
    """It may be too slow to answer; the figures of the last second tell, and only in a run that waits."""
    given = evidence(eight(), quiet=1.0, pace=3.0, usual=0.2)
    given.run.samples["n2", ""] = Measurement(node="n2", child="", at=NOW, values={"throttled": 0.97})
    unheard = replace(given, snapshots={name: node for name, node in given.snapshots.items() if name != "n2"})
    found = first(unheard)
    assert (found.code, found.nodes, found.severity) == ("slow-throttled", ("n2",), Severity.WARN)
    assert first(replace(unheard, pace=0.2)).severity is Severity.INFO


def test_a_rule_that_fails_keeps_no_other_from_being_heard() -> None:
    """It is told as a fault of ours, beside the verdict of the others."""

    def broken(_evidence: Evidence) -> Iterator[RuleResult]:
        yield RuledOut(what="", why="")
        raise KeyError("eth1")

    given = waiting_for(RankSnapshot(process=process(), stack=IMPORTS), 25.0)
    why = judge_by_rules(given, (broken, *LIVE_RULES))
    assert why.findings[0].code == "init-import-slow"
    assert any("'broken'" in each.what and "KeyError: 'eth1'" in each.why for each in why.ruled_out)


def test_a_look_that_fails_is_told_as_a_fault_of_ours() -> None:
    """With what it was, where, and how to tell us; a run that is stuck is not left without a word."""
    try:
        int("holds")
    except ValueError as error:
        found = report_internal_error(error, run="brave-otter")
    assert (found.code, found.severity) == ("why-failed", Severity.WARN)
    assert "ValueError: invalid literal for int" in found.seen
    assert " in test_a_look_that_fails" in found.seen
    assert "aboard bundle brave-otter" in found.fix


def test_only_ipv4_addresses_are_sent_packets() -> None:
    """Both ends of a link that is in trouble are asked about by others; the agent sends to IPv4 only."""
    nodes = {f"n{at}": {"addresses": (("eth0", f"10.0.0.{at}"), ("eth0", f"fd00::{at}"))} for at in range(1, 5)}
    bad = (stuck_socket("10.0.0.3:1", "10.0.0.1:2"), stuck_socket("[fd00::3]:1", "[fd00::1]:2"))
    found = build_follow_up_queries(evidence(eight(r4=in_collective(sockets=bad)), nodes=nodes))
    assert found["n2"].echoes == {"10.0.0.1", "10.0.0.3"}
    assert found["n1"].echoes == {"10.0.0.3"}
