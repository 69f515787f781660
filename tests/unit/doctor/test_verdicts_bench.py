"""What the fault bench taught the rules: each test is a case that was named wrongly once."""

from dataclasses import replace

import pytest
from evidence_builders import NOW, at_collective, evidence, in_collective, process, stack

from aboard.core.evidence.flight_records import find_straggler, measure_lateness
from aboard.core.evidence.node_snapshot import CollectiveRecord, RankSnapshot, StoreRequest
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_state import NodeConnection, Run
from aboard.core.run.stall_detector import LEAST_SECONDS, StallDetector
from aboard.diagnoses import Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.judge_evidence import judge_evidence

AT_STORE = stack(("/x/site-packages/torch/distributed/rendezvous.py", 9, "_create_c10d_store"), ("/me/t.py", 7, "main"))


def at_store(**given: object) -> RankSnapshot:
    joining = StoreRequest(host="10.0.0.1", port=29500, world=4, master=False)
    return RankSnapshot(process=process(**given), stack=AT_STORE, joining=joining)


def test_a_rank_in_poll_waits_for_no_file() -> None:
    """`poll_schedule_timeout` has the letters of a Lustre function in it, and is none."""
    ranks = {rank: at_store(wchan="poll_schedule_timeout.constprop.0") for rank in range(4)}
    found = judge_evidence(evidence(ranks, default=Phase.TORCH, quiet=30.0)).findings
    assert "hang-mount" not in [finding.code for finding in found]


def test_ranks_of_a_node_that_is_dark_are_not_called_late() -> None:
    """What they do nobody knows: that their node is silent is the verdict."""
    given = evidence({rank: at_store() for rank in range(4)}, phases={2: Phase.STARTED, 3: Phase.STARTED})
    given.run.generation.connections["n2"] = NodeConnection(state="cut", at=NOW - 12, why=Untrusted("no answer"))
    snapshots = {name: seen for name, seen in given.snapshots.items() if name != "n2"}
    for rank in (0, 1):
        given.run.generation.children["n1", str(rank)].phase = Phase.STORE
    dark = replace(given, snapshots=snapshots, unheard={"n2": "no contact with the node"})
    assert [(each.code, each.nodes) for each in judge_evidence(dark).findings] == [("run-node-silent", ("n2",))]


@pytest.mark.parametrize(("waited", "severity"), [(9.0, Severity.WARN), (0.5, Severity.INFO)])
def test_a_dark_node_is_told_from_a_management_network_that_flaps(waited: float, severity: Severity) -> None:
    """Two seconds without a word are nothing while the others go on, and a verdict once they wait for its ranks."""
    ranks = {rank: in_collective(groups=(at_collective(20, at=NOW - waited),)) for rank in range(4)}
    given = evidence(ranks)
    given.run.generation.connections["n2"] = NodeConnection(state="cut", at=NOW - 2, why=Untrusted("no answer"))
    snapshots = {name: seen for name, seen in given.snapshots.items() if name != "n2"}
    (found,) = judge_evidence(replace(given, snapshots=snapshots, unheard={"n2": "no contact with the node"})).findings
    assert (found.code, found.nodes, found.severity) == ("run-node-silent", ("n2",), severity)


def test_a_node_that_is_cut_off_is_asked_about_at_once() -> None:
    """The pauses between two looks grow, and a dark node ends them."""
    run = Run(id="brave-otter")
    rhythm = StallDetector()
    rhythm.update(run, 100.0)
    asked = 100.0 + LEAST_SECONDS
    assert [at for at in range(9) if rhythm.due(run, asked + at)] == [0, 1, 3, 6]
    run.generation.connections["n2"] = NodeConnection(state="cut", at=asked + 6.1)
    assert not rhythm.due(run, asked + 6.5)
    assert rhythm.due(run, asked + 7.5)
    assert not rhythm.due(run, asked + 7.6)


def test_one_long_wait_makes_no_straggler() -> None:
    """A stall that is over is in the record of collectives for a while, and is nobody's custom."""
    ranks = {}
    for rank in range(4):
        late = 6.0 if rank == 3 else 0.0
        entries = [
            CollectiveRecord(seq=n, op="all_reduce", at=900 + n + (late if n == 15 else 0), over=True)
            for n in range(30)
        ]
        ranks[rank] = (replace(at_collective(30), entries=tuple(entries)),)
    found = measure_lateness(ranks, {})
    assert found is not None
    assert find_straggler(found) is None


def test_lateness_is_read_from_the_group_with_most_collectives() -> None:
    """A group of which little is recorded says less, whichever of them comes first."""
    groups = tuple(
        replace(
            at_collective(30),
            name=str(count),
            entries=tuple(CollectiveRecord(seq=n, op="x", at=n, over=True) for n in range(1, count)),
        )
        for count in (20, 40, 30, 60, 50)
    )
    found = measure_lateness(dict.fromkeys(range(4), groups), {})
    assert found is not None
    assert (found.group, found.count) == ("60", 59)


def test_a_run_that_has_stopped_is_not_called_slow() -> None:
    """Ranks that were late before are no cause once nothing moves."""
    ranks = {}
    for rank in range(4):
        late = 0.5 if rank == 3 else 0.0
        entries = [CollectiveRecord(seq=n, op="all_reduce", at=960 + n + late, over=True) for n in range(30)]
        ranks[rank] = in_collective(groups=(replace(at_collective(30), entries=tuple(entries)),))
    assert [each.code for each in judge_evidence(evidence(ranks, quiet=0.5, pace=1.0)).findings] == ["slow-rank"]
    assert judge_evidence(evidence(ranks, quiet=4.0, pace=1.0)).findings == ()
