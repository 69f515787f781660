"""What is done about a failure is one table: by its class, and by what failed before without a new checkpoint."""

from dataclasses import replace

import pytest

from aboard.core.run.recovery.recovery_policy import Action, Failure, RecoverySettings, decide_recovery
from aboard.diagnoses import RunFailure
from aboard.diagnoses.catalogue import all_diagnoses
from aboard.diagnoses.failure_class import FailureClass

TRANSIENT, NODE, PROGRAM, OUTSIDE, UNKNOWN = FailureClass
ACTIVE = ("n1", "n2", "n3", "n4")
SETTINGS = RecoverySettings(restarts=10)


def fail(kind: FailureClass, *nodes: str, step: int = 1, checkpoint: int = 0) -> Failure:
    """A failure on these nodes; `step` makes it another one than at another step."""
    return Failure(kind=kind, code="x", nodes=nodes, signature=str(step), checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("failures", "spares", "action"),
    [
        # The class alone.
        ([fail(TRANSIENT, "n2")], 1, Action.RESTART),
        ([fail(NODE, "n2")], 1, Action.REPLACE),
        ([fail(NODE, "n2")], 0, Action.WAIT),
        ([fail(PROGRAM, "n2")], 1, Action.STOP),
        ([fail(OUTSIDE, "n2")], 1, Action.WAIT),
        ([fail(UNKNOWN, "n2")], 1, Action.RESTART),
        # Again, without a new checkpoint.
        ([fail(TRANSIENT, "n2")] * 2, 1, Action.RESTART),
        ([fail(TRANSIENT, "n2")] * 3, 1, Action.REPLACE),
        ([fail(TRANSIENT, "n2")] * 3, 0, Action.STOP),
        ([fail(TRANSIENT, "n2"), fail(TRANSIENT, "n3"), fail(TRANSIENT, "n4")], 1, Action.RESTART),
        ([fail(NODE, "n2")] * 2, 0, Action.STOP),
        ([fail(NODE, "n2"), fail(NODE, "n3")], 0, Action.WAIT),
        ([fail(NODE, "n2"), fail(NODE, "n3")], 1, Action.REPLACE),
        ([fail(NODE, "n2", "n3")], 1, Action.WAIT),
        ([fail(OUTSIDE, "n2")] * 2, 1, Action.WAIT),
        ([fail(UNKNOWN, "n2")] * 2, 1, Action.STOP),
        ([fail(UNKNOWN, "n2"), fail(UNKNOWN, "n2", step=2)], 1, Action.REPLACE),
        ([fail(UNKNOWN, "n2"), fail(UNKNOWN, "n3", step=2)], 1, Action.STOP),
        ([fail(UNKNOWN, *ACTIVE), fail(UNKNOWN, *ACTIVE, step=2)], 1, Action.STOP),
        # After a new checkpoint, nothing of before counts.
        ([fail(UNKNOWN, "n2"), fail(UNKNOWN, "n2", checkpoint=5)], 1, Action.RESTART),
        ([*[fail(TRANSIENT, "n2")] * 10, fail(TRANSIENT, "n2", checkpoint=5)], 0, Action.RESTART),
        ([fail(OUTSIDE, "n2")] * 11, 0, Action.STOP),
    ],
)
def test_the_table_of_actions(failures: list[Failure], spares: int, action: Action) -> None:
    """Restart by cause."""
    decision = decide_recovery(failures, SETTINGS, ACTIVE, [f"s{number}" for number in range(spares)])
    assert decision.action is action, decision.why


def test_a_lost_node_is_replaced_whatever_others_reported() -> None:
    """The nodes of the verdict, which lost their peer, keep their ranks."""
    for kind in (TRANSIENT, UNKNOWN, OUTSIDE):
        decision = decide_recovery([replace(fail(kind, "n1"), lost=("n3",))], SETTINGS, ACTIVE, ["s1"])
        assert (decision.action, decision.nodes) == (Action.REPLACE, ("n3",))
    both = decide_recovery([replace(fail(NODE, "n1"), lost=("n3",))], SETTINGS, ACTIVE, ["s1", "s2"])
    assert both.nodes == ("n3", "n1")
    assert decide_recovery([replace(fail(PROGRAM, "n1"), lost=("n3",))], SETTINGS, ACTIVE, ["s1"]).action is Action.STOP


def test_a_folder_that_an_old_rank_of_ours_may_hold_is_waited_for_and_costs_no_restart() -> None:
    """However often: each wait ends with the lease at the latest."""
    held = replace(fail(OUTSIDE, "n1"), code="checkpoint-folder-busy", own_lease=500.0)
    lost = replace(fail(NODE, "n3"), lost=("n3",))
    one = replace(SETTINGS, restarts=1)
    for failures in ([held], [lost, held], [lost, *[held] * 20]):
        decision = decide_recovery(failures, one, ACTIVE, ())
        assert (decision.action, decision.wait, decision.lease, decision.pause) == (Action.WAIT, 500.0, True, 0.0)
    assert decide_recovery([lost, held, fail(OUTSIDE, "n1")], one, ACTIVE, ()).action is Action.STOP
    assert decide_recovery([held], RecoverySettings(), ACTIVE, ()).action is Action.STOP


def test_the_world_gets_smaller_only_if_that_was_asked_for() -> None:
    """`min_nodes` decides, and the node is waited for before."""
    for least, action in ((None, Action.WAIT), (4, Action.WAIT), (3, Action.SHRINK)):
        decision = decide_recovery([fail(NODE, "n2")], replace(SETTINGS, min_nodes=least), ACTIVE, ())
        assert (decision.action, decision.nodes, decision.wait) == (action, ("n2",), SETTINGS.wait)


def test_pauses_grow_until_there_is_a_new_checkpoint() -> None:
    """The first restart is immediate."""
    pauses = [decide_recovery([fail(OUTSIDE, "n2")] * times, SETTINGS, ACTIVE, ()).pause for times in range(1, 8)]
    assert pauses == [0, 5, 10, 20, 40, 60, 60]
    assert decide_recovery([*[fail(OUTSIDE)] * 5, fail(OUTSIDE, checkpoint=9)], SETTINGS, ACTIVE, ()).pause == 0


def test_without_a_budget_nothing_is_restarted() -> None:
    """As `aboard launch` does unless it is asked to."""
    assert decide_recovery([fail(TRANSIENT, "n2")], RecoverySettings(), ACTIVE, ["s1"]).action is Action.STOP


@pytest.mark.parametrize(
    ("code", "variant", "circumstances", "kind"),
    [
        ("run-raised", "", {}, PROGRAM),
        ("run-raised", "port", {}, TRANSIENT),
        ("run-raised", "gpu-memory", {}, PROGRAM),
        ("run-raised", "install", {}, NODE),
        ("run-raised", "install", {"everywhere": True}, PROGRAM),
        ("run-disk-full", "sizes", {}, NODE),
        ("run-disk-full", "sizes", {"shared_disk": True}, OUTSIDE),
        ("run-out-of-memory", "killed", {}, NODE),
        ("run-out-of-memory", "killed", {"own_memory": True}, PROGRAM),
        ("run-killed", "memory", {}, TRANSIENT),
        ("run-killed", "software", {}, UNKNOWN),
        ("gpu-xid", "reset", {}, NODE),
        ("gpu-xid", "program", {}, PROGRAM),
        ("run-node-gone", "", {}, NODE),
        ("run-rank-stopped", "continue", {}, OUTSIDE),
        # A fix of another diagnosis.
        ("run-raised", "reset", {}, PROGRAM),
    ],
)
def test_the_class_depends_on_the_variant_and_the_circumstances(
    code: str, variant: str, circumstances: dict[str, bool], kind: FailureClass
) -> None:
    """The same code is a node's here and the program's there."""
    failure = all_diagnoses()[code]
    assert isinstance(failure, RunFailure)
    assert failure.classify(variant, **circumstances) is kind
