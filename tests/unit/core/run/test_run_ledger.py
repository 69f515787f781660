"""What the time of a run is spent on, over generations, folded from its events alone."""

import json
from dataclasses import replace

import pytest
from made_events import made_event
from rich.console import Console
from run_states import RUN, cluster, plan_of

from aboard.commands.launch.view.roster_view import RosterView
from aboard.commands.launch.view.run_cost import format_cost, format_recovery
from aboard.core.run.event_kinds import CaughtUp, SteppingStarted
from aboard.core.run.events import Event, Measurement
from aboard.core.run.recovery.recovery_policy import Action, Failure, Recovery, RecoverySettings, count_attempts
from aboard.core.run.run_ledger import VARIABLE, EarlierTime, encode_earlier
from aboard.core.run.run_progress import RunProgress, build_run_progress
from aboard.core.run.run_state import Run
from aboard.core.run.training_metrics import TypicalStep
from aboard.diagnoses.failure_class import FailureClass
from aboard.trainer.metrics.time_ledger import TimeLedger

SEEN = "n3 lost a GPU: Xid 79 on GPU 0000:3b:00.0, which has fallen off the bus"


def say(at: float, kind: str, node: str = "", child: str = "", **data: object) -> Event:
    return made_event(kind, node=node, at=1000.0 + at, child=child, **data)


# Fails at step 30, when 20 is saved; the next generation repeats ten steps and ends at step 50.
FIRST = [
    say(0, "generation", number=1),
    say(1, "started", "n1", "0"),
    say(4, "phase", "n1", "0", phase="group"),
    say(10, "stepping", start=0),
]
FAILS = [
    say(40, "cut", "n2", why="silent"),
    say(42, "gone", "n2", why="lost"),
    say(43, "deciding", why="node n2 was lost", death=False, was_stopped=False),
    say(
        48, "recovering", code="run-node-gone", seen=SEEN, failure="node", action="replace", why="n2 failed",
        doing="n3 takes over", most=11, step=30, saved=20, step_seconds=1.0,
    ),
]  # fmt: skip
SECOND = [
    say(60, "generation", number=2),
    say(62, "started", "n1", "0"),
    say(65, "phase", "n1", "0", phase="group"),
    say(70, "stepping", start=20),
]
ENDS = [
    say(80, "caught_up"),
    say(100, "deciding", why="every rank has finished", death=False, was_stopped=False),
    say(102, "finished", why="every rank has finished", code=0, step=50, saved=50, step_seconds=1.0),
]
WHOLE = {
    "starting": 4 + 5, "loading": 6 + 5, "steps": 30 + 20, "repeated": 10, "detection": 3, "stopping": 5 + 2,
    "waiting": 12,
}  # fmt: skip


def test_every_second_of_a_run_belongs_to_one_class() -> None:
    """Detection counts from the first sign of the failure, and the classes add up to the wall time at any moment."""
    run = Run.replay(RUN, [*FIRST, *FAILS, *SECOND, *ENDS])
    assert run.ledger.measure(2000.0) == WHOLE
    for count in range(1, len([*FIRST, *FAILS, *SECOND])):
        events = [*FIRST, *FAILS, *SECOND][:count]
        now = events[-1].at + 0.5
        assert sum(Run.replay(RUN, events).ledger.measure(now).values()) == pytest.approx(now - 1000.0)


def test_goodput_counts_steps_that_are_not_lost() -> None:
    """While steps go on, those that may still be lost count; after a failure, those up to the newest checkpoint."""
    running = Run.replay(RUN, FIRST)
    running.ledger.step_seconds = 1.0
    assert running.ledger.compute_goodput(25, 1035.0) == pytest.approx(25 / 35)
    failed = Run.replay(RUN, [*FIRST, *FAILS])
    assert failed.ledger.compute_goodput(None, 1050.0) == pytest.approx(20 / 50)
    ended = Run.replay(RUN, [*FIRST, *FAILS, *SECOND, *ENDS])
    assert ended.ledger.compute_goodput(None, 9999.0) == pytest.approx(50 / 102)
    assert Run.replay(RUN, [FIRST[0]]).ledger.compute_goodput(5, 1005.0) is None


def test_an_undisturbed_step_is_the_median() -> None:
    """A window with a long wait in it moves nothing, and memory is bounded."""
    assert TypicalStep().seconds is None
    typical = TypicalStep()
    for number in range(5000):
        typical.add(9.0 if number % 10 == 0 else 1.0, 3)
    assert typical.seconds == 1.0
    assert len(typical._windows) <= 512


def test_measurements_become_milestones() -> None:
    """The first report of a trainer is the first step of this generation; catching up is an event of its own."""
    run = Run.replay(RUN, [*FIRST[:3]])
    start = Measurement(node="n1", child="0", at=1010.0, metrics={"start": 0.0, "steps": 50.0})
    run.take(start)
    assert run.find_milestone(start) == SteppingStarted(start=0)
    for metrics in ({"step": 1.0, "typical_step_seconds": 1.0}, {"step": 2.0}):
        run.take(Measurement(node="n1", child="0", at=1011.0, metrics=metrics))
    assert run.ledger.step_seconds == 1.0
    run = Run.replay(RUN, [*FIRST, *FAILS, *SECOND])
    for step, milestone in ((25, None), (30, CaughtUp())):
        at = Measurement(node="n1", child="0", at=1075.0, values={"step": step})
        run.take(at)
        assert run.find_milestone(at) == milestone


def test_a_start_that_is_known_late_still_counts() -> None:
    """Another node's first step may come before the step that rank 0 continues from, which goodput needs."""
    run = Run.replay(RUN, [*FIRST[:3], say(10, "stepping")])
    start = Measurement(node="n1", child="0", at=1011.0, metrics={"start": 0.0, "steps": 50.0})
    run.take(start)
    assert run.find_milestone(start) == SteppingStarted(start=0)
    run.apply(say(11, "stepping", start=0))
    assert run.find_milestone(start) is None
    for event in (*FAILS, *SECOND[:3], say(70, "stepping"), say(71, "stepping", start=20), *ENDS):
        run.apply(event)
    assert run.ledger.measure(1102.0) == {**WHOLE, "steps": 30 + 21, "repeated": 9}
    assert run.ledger.compute_goodput(50, 1102.0) == pytest.approx(50 / 102)


def test_rank_0_continues_the_ledger_of_the_run() -> None:
    """Earlier generations and the start are in its total, the wall time of the run; lost steps are repeated."""
    run = Run.replay(RUN, [*FIRST, *FAILS, SECOND[0]])
    # The node's clock is 500 s ahead; its rank is ready 5 s after this generation began.
    given = {VARIABLE: encode_earlier(run.ledger, run.began + 500.0)}
    earlier = EarlierTime.of(given, 1565.0)
    assert (earlier.reached, earlier.first) == (30, 0)
    clock = iter([0.0, 5.0, 6.0, 15.0, 16.0, 20.0])
    ledger = TimeLedger(lambda: next(clock), earlier=earlier)
    ledger.begin_step(30)
    ledger.switch_to("forward_backward")
    ledger.begin_step(31)
    ledger.switch_to("optimizer")
    seconds, wall = ledger.total()
    assert wall == 65 + 20
    assert sum(seconds.values()) == pytest.approx(wall)
    expected = {
        "starting": 9,
        "loading": 6 + 6,
        "detection": 3,
        "stopping": 5,
        "waiting": 12,
        "steps": 30,
        "repeated": 9,
    }
    assert {kind: spent for kind, spent in seconds.items() if kind in expected} == expected
    assert EarlierTime.of({}, 1565.0).seconds == {}
    json.loads(given[VARIABLE])


def test_failures_after_the_first_step_are_counted() -> None:
    """Rank 0 of the next attempt gets their number; one that failed while starting lost no steps."""
    unfit = say(50, "recovering", code="run-node-gone", action="wait", again=True)
    starting = [*SECOND[:3], say(66, "deciding", why="n1 failed", death=True), say(67, "recovering", code="x")]
    for events, count in (
        (FIRST, 0),
        ([*FIRST, *FAILS], 1),
        ([*FIRST, *FAILS, unfit, *SECOND], 1),
        ([*FIRST, *FAILS, *starting], 1),
        ([*FIRST, *FAILS, *SECOND, *ENDS], 1),
        # The conductor was killed with the ranks, and the run was submitted again.
        ([*FIRST, SECOND[0]], 1),
    ):
        run = Run.replay(RUN, events)
        earlier = EarlierTime.of({VARIABLE: encode_earlier(run.ledger, run.began)}, 2000.0)
        assert earlier.failures == run.ledger.failures == count


def build_progress(events: list[Event], at: float) -> RunProgress:
    return build_run_progress(plan_of(cluster(2, slots=1)), Run.replay(RUN, events), 1000.0 + at)


def test_the_goodput_and_what_is_listed_beside_it_add_up_to_the_whole_time() -> None:
    """Steps that took longer than usual, were lost, or waited for a checkpoint have a part of their own."""
    spent = {"starting": 82.0, "steps": 61.0, "repeated": 7.0, "loading": 8.0}
    assert format_cost(spent, 40.0 / 158.0, restarts=1)[1] == (
        "25% of 2 min 38 s: starting 1 min 22 s, slow or lost steps, saves and evaluations 21 s, loading 8.0 s,"
        " repeated steps 7.0 s"
    )


def test_a_recovery_is_one_line_until_the_next_step() -> None:
    """Attempt, failure, action and seconds since its first sign; the observation is what is cut."""
    recovering = build_progress([*FIRST, *FAILS], 52.0)
    assert format_recovery(recovering, 200) == f"attempt 2 of 11: {SEEN} (run-node-gone): n3 takes over; 12 s"
    short = format_recovery(recovering, 80)
    assert len(short) == 80
    assert short.endswith("… (run-node-gone): n3 takes over; 12 s")
    assert format_recovery(build_progress([*FIRST, *FAILS, *SECOND[:3]], 66.0), 200).endswith("26 s")
    assert format_recovery(build_progress([*FIRST, *FAILS, *SECOND], 71.0), 200) == ""
    for width in (80, 120):
        console = Console(width=width, height=24, record=True)
        console.print(RosterView(recovering))
        said = " ".join(console.export_text().split())
        assert "attempt 2 of 11: n3 lost a GPU" in said
        assert "n3 takes over; 12 s" in said


def test_the_summary_says_what_failures_cost() -> None:
    """Goodput, then the classes by length; a run that never failed has only what it took to start."""
    progress = build_progress([*FIRST, *FAILS, *SECOND, *ENDS], 200.0)
    cost = format_cost(progress.spent, progress.goodput, restarts=progress.restarts)
    assert cost == (
        "goodput",
        (
            "49% of 1 min 42 s: waiting 12 s, loading 11 s, repeated steps 10 s, starting 9.0 s, stopping 7.0 s,"
            " detection 3.0 s"
        ),
    )
    assert format_cost({"starting": 3.0}, None, restarts=0) == ("", "")
    assert format_cost({"starting": 9.0, "waiting": 3.0}, None, restarts=1) == ("lost", "3.0 s of 12 s: waiting 3.0 s")


def test_the_number_of_attempts_grows_with_each_checkpoint() -> None:
    """The budget is for attempts without a new checkpoint."""
    settings = RecoverySettings(restarts=10)
    old = Failure(kind=FailureClass.TRANSIENT, code="x", checkpoint=1)
    assert count_attempts([old], settings) == 11
    assert count_attempts([old, old], settings) == 11
    assert count_attempts([old, old, replace(old, checkpoint=2)], settings) == 13


def test_an_action_is_said_in_a_few_words() -> None:
    """What the live view shows while it is carried out."""
    replaced = Recovery(action=Action.REPLACE, why="", nodes=("n3",), spares=("n9",))
    assert replaced.doing == "n9 takes over"
    assert replace(replaced, action=Action.WAIT).doing == "waiting for n3"
    assert replace(replaced, action=Action.WAIT, nodes=()).doing == "waiting until it clears"
    assert replace(replaced, action=Action.RESTART).doing == "restarting on the same nodes"
