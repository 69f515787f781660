"""The verdict on a run that lives, over evidence made by hand: the cause, the node and rank, and what is no cause."""

from dataclasses import replace
from typing import Any

import pytest
from evidence_builders import NOW, at_collective, evidence, in_collective, process, stack, stuck_socket

from aboard.core.evidence.node_snapshot import (
    CollectiveRecord,
    OtherProcess,
    PingResult,
    RankSnapshot,
    StoreRequest,
    TcpConnection,
)
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_state import NodeConnection
from aboard.diagnoses import Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.judge_evidence import judge_evidence

SLEEPING = stack(("/home/me/train.py", 31, "wait_for_luck"), ("/home/me/train.py", 50, "main"))


def eight(**others: RankSnapshot) -> dict[int, RankSnapshot]:
    """Eight ranks in the 20th collective, but for those that are given as rN."""
    ranks = {rank: in_collective() for rank in range(8)}
    return ranks | {int(name[1:]): seen for name, seen in others.items()}


def first(given: Evidence) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
    why = judge_evidence(given)
    assert why.findings, why.ruled_out
    found = why.findings[0]
    return found.code, found.nodes, found.ranks


def behind(**given: Any) -> RankSnapshot:
    """A rank that has done the 19th and is elsewhere."""
    return replace(in_collective(), groups=(at_collective(19, over=True),), stack=SLEEPING, **given)


def test_a_stopped_rank_is_the_cause_before_its_absence() -> None:
    """State T explains that it isn't in the collective."""
    found = judge_evidence(evidence(eight(r5=behind(process=process(state="T", states="TTTTTTTT")))))
    assert (found.findings[0].code, found.findings[0].ranks) == ("run-rank-stopped", (5,))
    assert len(found.findings) == 1
    assert "kill -CONT 4711" in found.findings[0].fix


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        (behind(process=process(call="clock_nanosleep")), "hang-absent"),
        (behind(process=process(call="futex")), "hang-lock"),
        (behind(process=process(call="recvfrom", file="socket:[77]")), "hang-outside"),
        (replace(behind(), stack=stack(("/home/me/train.py", 3, "load_batch"))), "hang-data"),
    ],
)
def test_a_rank_that_never_came(seen: RankSnapshot, code: str) -> None:
    """What it waits for instead decides what it is called; rank, node and line are told."""
    given = evidence(eight(r3=seen))
    assert first(given) == (code, ("n2",), (3,))
    assert "train.py:" in judge_evidence(given).findings[0].seen
    assert "7 other ranks have waited 10 s" in judge_evidence(given).findings[0].seen


@pytest.mark.parametrize("name", ["save_checkpoint", "evaluate"])
def test_work_that_others_wait_for_is_only_noted(name: str) -> None:
    """A checkpoint or an evaluation of one rank takes as long as it takes."""
    seen = replace(behind(), stack=stack(("/home/me/train.py", 3, name)))
    (found,) = judge_evidence(evidence(eight(r0=seen))).findings
    assert (found.code, found.severity) == ("hang-busy", Severity.INFO)


def test_compiling_is_no_stall() -> None:
    """All ranks may compile for minutes; one that the others wait for has half an hour."""
    compiling = behind(doing="compiling", process=process(states="RRRRRRRR", cpu=1.0))
    every = judge_evidence(evidence(dict.fromkeys(range(8), compiling), quiet=600.0))
    assert not [found for found in every.findings if found.severity is not Severity.INFO]
    for waited, severity in ((1500, Severity.INFO), (2000, Severity.BLOCK)):
        late = {rank: in_collective(groups=(at_collective(20, at=NOW - waited),)) for rank in range(8)} | {2: compiling}
        found = judge_evidence(evidence(late, quiet=float(waited))).findings[0]
        assert (found.code, found.ranks, found.severity) == ("hang-busy", (2,), severity)
        assert "compiling" in found.seen


def test_a_rank_that_computes_is_given_time() -> None:
    """Ten seconds of work are none of our business, a minute while others make five steps a second is."""
    busy = behind(process=process(states="RRRRRRRR", cpu=1.0))
    assert judge_evidence(evidence(eight(r2=busy))).findings[0].severity is Severity.INFO
    late = {rank: in_collective(groups=(at_collective(20, at=NOW - 60),)) for rank in range(8)} | {2: busy}
    assert first(evidence(late, quiet=60.0)) == ("hang-loop", ("n2",), (2,))


def test_a_collective_of_another_kind() -> None:
    """The one that differs is named, with both calls."""
    odd = in_collective(groups=(at_collective(20, op="gloo:broadcast", sizes="[[4]]"),))
    given = evidence(eight(r6=odd))
    assert first(given) == ("hang-mismatch", ("n4",), (6,))
    assert "rank 6 issued broadcast" in judge_evidence(given).findings[0].seen


def test_a_collective_of_another_type() -> None:
    """The types are named where they are what differs."""
    usual, odd = (at_collective(20, sizes="[[4, 3]]", types=(kind,)) for kind in ("Float", "BFloat16"))
    ranks = {rank: in_collective(groups=(odd if rank == 6 else usual,)) for rank in range(8)}
    found = judge_evidence(evidence(ranks)).findings[0]
    assert (found.code, found.ranks) == ("hang-mismatch", (6,))
    assert "issued all_reduce of [4, 3] BFloat16 (sequence number 20)" in found.seen
    assert "the other 7 ranks issued all_reduce of [4, 3] Float" in found.seen


def test_of_two_ranks_in_different_collectives_both_are_named() -> None:
    """There is no majority that shows which one is wrong."""
    odd = in_collective(groups=(at_collective(20, op="gloo:broadcast", sizes="[[4]]"),))
    assert first(evidence({0: in_collective(), 1: odd}, per_node=1)) == ("hang-mismatch", ("n1", "n2"), (0, 1))


def test_two_groups_that_wait_for_each_other() -> None:
    """Each side waits in a group to which the other has not come."""
    one, two = at_collective(20), at_collective(8)
    a = in_collective(groups=(one, replace(at_collective(7, over=True), name="1", what="tp")))
    b = in_collective(groups=(at_collective(19, over=True), replace(two, name="1", what="tp")))
    code, _nodes, ranks = first(evidence({0: a, 1: b}, per_node=1))
    assert code == "hang-order"
    assert ranks in {(0,), (1,)}


def test_ranks_that_have_finished() -> None:
    """Who has left is named, not who waits."""
    given = evidence(eight())
    child = given.run.generation.children["n4", "7"]
    child.state, child.code, child.at = "exited", 0, NOW - 9
    assert first(given) == ("hang-uneven", ("n4",), (7,))


def test_a_cut_link_is_told_from_a_narrow_one() -> None:
    """The node that is in all bad pairs is named; what passes when it is small is lost for its size."""
    ranks = eight(
        r4=in_collective(
            sockets=(stuck_socket("10.0.0.3:1", "10.0.0.1:2", tx=96), stuck_socket("10.0.0.3:1", "10.0.0.4:2"))
        ),
        r1=in_collective(sockets=(stuck_socket("10.0.0.1:3", "10.0.0.3:4"),)),
    )
    assert first(evidence(ranks))[:2] == ("hang-link-cut", ("n3",))
    heard = {
        name: {"echoes": {"10.0.0.3": PingResult(small=True, large=False, sent=4, lost=3)}}
        for name in ("n1", "n2", "n4")
    }
    assert first(evidence(ranks, nodes=heard))[:2] == ("hang-big-packets", ("n3",))


def test_a_mount_that_does_not_answer() -> None:
    """The file system is named, and nobody is called absent for it."""
    hung = behind(
        process=process(state="D", states="DDDDDDDD", wchan="rpc_wait_bit_killable", file="/data/shard-7", call="read")
    )
    mounts = {"n2": {"mounts": (("/", "ext4", "sda"), ("/data", "nfs4", "server:/data"))}}
    (found,) = judge_evidence(evidence(eight(r3=hung), nodes=mounts)).findings
    assert (found.code, found.nodes, found.ranks) == ("hang-mount", ("n2",), (3,))
    assert "/data/shard-7" in found.seen
    assert "/data (nfs4)" in found.seen


JOINING = StoreRequest(host="10.0.0.1", port=29500, world=8)


def joining(**given: Any) -> RankSnapshot:
    return RankSnapshot(**{"process": process(), "joining": JOINING, **given})


def test_a_store_that_is_dropped_refused_or_unknown() -> None:
    """One symptom in torch, three causes here: by the connection that waits, and by a try of the node's own."""
    syn = TcpConnection(local="10.0.0.3:5", remote="10.0.0.1:29500", state="SYN_SENT", resent=2)
    waiting = {rank: joining() for rank in range(8)}
    dropped = evidence(waiting | {4: joining(sockets=(syn,)), 5: joining(sockets=(syn,))}, default=Phase.TORCH,
                       phases={0: Phase.STORE, 2: Phase.STORE})  # fmt: skip
    assert first(dropped) == ("init-store-dropped", ("n3",), (4, 5))
    other = joining(joining=replace(JOINING, host="n9"))
    unknown = {"n3": {"names": {"n9": "Name or service not known"}}}
    named = evidence(waiting | {4: other}, default=Phase.TORCH, nodes=unknown)
    assert first(named) == ("init-name", ("n3",), (4,))
    moved = joining(joining=replace(JOINING, port=29501))
    nodes = {"n3": {"dials": {("10.0.0.1", 29501): "refused"}}}
    assert first(evidence(waiting | {4: moved}, default=Phase.TORCH, nodes=nodes)) == ("init-elsewhere", ("n3",), (4,))


def test_a_connection_to_somebody_else_says_nothing_of_the_store() -> None:
    """Neither one to another port of the store's host, nor one to the same port of another host."""
    for remote in ("10.0.0.1:29999", "10.0.0.2:29500"):
        other = TcpConnection(local="10.0.0.3:5", remote=remote, state="SYN_SENT", resent=2)
        ranks = {rank: joining() for rank in range(8)} | {4: joining(sockets=(other,)), 5: joining(sockets=(other,))}
        found = judge_evidence(evidence(ranks, default=Phase.TORCH, phases={0: Phase.STORE, 2: Phase.STORE})).findings
        assert "init-store-dropped" not in [each.code for each in found]


def test_peers_that_do_not_answer() -> None:
    """The one whom others can't reach is blamed; one who reaches nobody is so itself."""

    def met(*remotes: str) -> RankSnapshot:
        sockets = (TcpConnection(local="10.0.0.3:5", remote=remote, state="SYN_SENT", resent=2) for remote in remotes)
        return joining(sockets=tuple(sockets))

    ranks = {rank: joining() for rank in range(8)}
    for tries, node in (
        ({4: met("10.0.0.1:41000")}, "n1"),
        ({4: met("10.0.0.1:41000"), 6: met("10.0.0.1:41000", "10.0.0.2:41000")}, "n1"),
        ({4: met("10.0.0.1:41000", "10.0.0.2:41000")}, "n3"),
    ):
        assert first(evidence(ranks | tries, default=Phase.STORE))[:2] == ("network-ephemeral-dropped", (node,))


def test_a_world_that_nobody_started() -> None:
    """The number that the script asks for is told beside the one that there is."""
    given = evidence({rank: joining(joining=replace(JOINING, world=9)) for rank in range(8)}, default=Phase.TORCH)
    assert first(given)[0] == "init-world"
    assert judge_evidence(given).findings[0].seen.endswith("a world size of 9; the run has 8 ranks")
    placed = {rank: joining(joining=replace(JOINING, world=9), stack=SLEEPING) for rank in range(8)}
    seen = judge_evidence(evidence(placed, default=Phase.TORCH)).findings[0].seen
    assert seen.endswith("a world size of 9 at train.py:31 in wait_for_luck; the run has 8 ranks")


def test_a_slow_import_is_no_stall() -> None:
    """Others wait in the store, and the late one is in an import: that is only noted."""
    late = RankSnapshot(
        process=process(), stack=stack(("/x/slow.py", 1, "<module>"), ("<frozen importlib._bootstrap>", 9, "_load"))
    )
    given = evidence({rank: joining() for rank in range(8)} | {6: late}, default=Phase.TORCH, phases={6: Phase.PYTHON})
    assert all(found.severity is Severity.INFO for found in judge_evidence(given).findings)


def test_a_node_that_has_fallen_silent() -> None:
    """Its ranks are not judged by what can't be seen of them; it is named itself, and in time called a trouble."""
    given = evidence({rank: in_collective(groups=(at_collective(20, at=NOW - 1),)) for rank in range(8)})
    given.run.generation.connections["n4"] = NodeConnection(
        state="cut", at=NOW - 6, why=Untrusted("no beat came over the wire")
    )
    unheard = replace(given, snapshots={name: node for name, node in given.snapshots.items() if name != "n4"})
    assert first(unheard)[:2] == ("run-node-silent", ("n4",))
    assert judge_evidence(unheard).findings[0].severity is Severity.INFO
    later = judge_evidence(replace(unheard, now=NOW + 10)).findings[0]
    assert (later.code, later.severity) == ("run-node-silent", Severity.WARN)


def walked(late: float, **given: Any) -> RankSnapshot:
    """A rank that came so much later than the others to each of thirty collectives."""
    entries = tuple(
        CollectiveRecord(seq=seq, op="gloo:all_reduce", at=900 + seq + late, over=True) for seq in range(30)
    )
    group = replace(at_collective(30), entries=entries, enqueued=29)
    return in_collective(groups=(group,), **given)


def test_a_straggler_and_what_keeps_it() -> None:
    """By when ranks come to collectives, on corrected clocks; by what was counted on its node."""
    ranks = {rank: walked(0.0) for rank in range(8)} | {5: walked(0.6, process=process(delay=0.8, cpu=0.4))}
    given = evidence(ranks, quiet=0.5, pace=1.0, usual=0.3)
    assert first(given) == ("slow-rank", ("n3",), (5,))
    throttled = evidence(ranks, quiet=0.5, pace=1.0, usual=0.3, nodes={"n3": {"throttled": 0.6}})
    assert first(throttled) == ("slow-throttled", ("n3",), (5,))
    crowded = {"n3": {"neighbours": (OtherProcess(pid=99, name=Untrusted("stress"), cores=1.8),)}}
    named = judge_evidence(evidence(ranks, quiet=0.5, pace=1.0, usual=0.3, nodes=crowded)).findings[0]
    assert named.code == "slow-neighbour"
    assert "stress (pid 99)" in named.seen


@pytest.mark.parametrize(("per_step", "at_once"), [(1, False), (2, False), (4, True)])
def test_a_rank_that_became_slow_a_few_collectives_ago_is_late_by_what_it_is_late_now(
    per_step: int,
    at_once: bool,  # noqa: FBT001
) -> None:
    """The fast collectives before, and the later ones of each step, don't dilute the printed lateness.

    Where ranks issue all of a step's at once, the others wait for all of them at the same time.
    """

    def walk(rank: int) -> RankSnapshot:
        entries, at = [], 900.0
        for step in range(24):
            late = 1.0 if step >= 16 else 0.0
            at += 0.1 + late
            for number in range(per_step):
                came = at - (late if rank != 5 and (at_once or number == 0) else 0.0) + 0.001 * number
                seq = step * per_step + number
                entries.append(CollectiveRecord(seq=seq, op="gloo:all_reduce", at=came, over=True))
        return in_collective(groups=(replace(at_collective(49), entries=tuple(entries), enqueued=entries[-1].seq),))

    given = evidence({rank: walk(rank) for rank in range(8)}, quiet=0.5, pace=1.1, usual=0.1)
    seen = judge_evidence(given).findings[0].seen
    count = 24 * per_step
    times = 8 * per_step if at_once else 8
    assert seen.startswith(f"rank 5 on n3 arrived 1.0 s later than the others at {times} of the last {count} ")
    assert "waited for it for 78 % of that time" in seen


def test_a_clock_that_is_off_makes_no_straggler() -> None:
    """Times of a node are told by its own clock, and corrected by what is known of it."""
    ranks = {rank: walked(30.0 if rank in {4, 5} else 0.0) for rank in range(8)}
    given = evidence(ranks, quiet=0.5, nodes={"n3": {"offset": 30.0}})
    assert judge_evidence(given).findings == ()


def test_a_slow_link() -> None:
    """All come at the same time, and one connection has a queue before it."""
    queue = TcpConnection(
        local="10.0.0.2:1", remote="10.0.0.1:2", state="ESTABLISHED", tx=400_000, rtt=0.11, least_rtt=0.0001
    )
    back = replace(queue, local="10.0.0.3:7", remote="10.0.0.2:9")
    ranks = {rank: walked(0.0) for rank in range(8)}
    ranks |= {2: walked(0.0, sockets=(queue,)), 4: walked(0.0, sockets=(back,))}
    assert first(evidence(ranks, quiet=1.0, pace=3.0))[:2] == ("slow-link", ("n2",))
    assert (
        judge_evidence(evidence(ranks, quiet=1.0, pace=3.0))
        .findings[0]
        .fix.startswith("aboard check -i n2@n1 --only network")
    )


@pytest.mark.parametrize(("tx", "losses", "slow"), [(400, 90, True), (400, 0, False), (0, 90, False)])
def test_losses_make_a_link_slow_while_something_waits_for_it(tx: int, losses: int, slow: bool) -> None:  # noqa: FBT001
    """What was lost once and has arrived since holds nobody up, and neither do a few bytes on their way."""
    way = TcpConnection(
        local="10.0.0.2:1", remote="10.0.0.1:2", state="ESTABLISHED", tx=tx, rtt=0.0002, least_rtt=0.0001
    )
    ranks = {rank: walked(0.0) for rank in range(8)}
    ranks[2] = walked(0.0, sockets=(replace(way, losses=losses, segments=1000),))
    found = judge_evidence(evidence(ranks, quiet=1.0, pace=3.0)).findings
    assert [each.code for each in found if each.code == "slow-link"] == ["slow-link"] * slow


def test_a_loss_that_is_no_number() -> None:
    """In a rank's own words, more than once."""
    said = {0: ("step 7 loss: 0.31", "step 8 loss: nan", "step 9 loss=nan")}
    assert first(evidence(eight(), quiet=0.1, last_lines=said))[0] == "loss-no-number"
    assert (
        judge_evidence(evidence(eight(), quiet=0.1, last_lines={0: ("loss: 0.5", "nancy lost her loss")})).findings
        == ()
    )


def test_nothing_is_said_of_a_run_that_goes_on() -> None:
    """Everybody is in the same collective, for a moment."""
    ranks = {rank: in_collective(groups=(at_collective(20, at=NOW - 0.1),)) for rank in range(8)}
    why = judge_evidence(evidence(ranks, quiet=0.1))
    assert why.findings == ()
    assert len(why.ruled_out) >= 3


def test_what_nobody_knows_is_said_so() -> None:
    """After minutes: where the ranks are, and two commands."""
    ranks = {rank: in_collective() for rank in range(8)}
    (found,) = judge_evidence(evidence(ranks, quiet=300.0)).findings
    assert found.code == "hang-unknown"
    assert "no progress for 300 s" in found.seen
    assert len(found.fix.splitlines()) == 2
