"""A run is a fold over its events, the same live and replayed."""

from typing import Any

from hypothesis import given, strategies as st
from made_events import made_event

from aboard.core.plan.plan import Start
from aboard.core.run.end_decision import decide
from aboard.core.run.events import Event, Measurement
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_state import Run
from aboard.diagnoses.untrusted import Untrusted


def _event(kind: str, node: str = "n1", child: str = "0", at: float = 1.0, **data: Any) -> Event:
    return made_event(kind, node=node, seq=1, at=at, child=child, **data)


KINDS = ["started", "exited", "failed", "phase", "raised", "held", "cut", "gone", "ending", "ended", "new_kind"]
EVENTS = st.lists(
    st.builds(
        _event,
        st.sampled_from(KINDS),
        st.sampled_from(["n1", "n2"]),
        st.sampled_from(["0", "1"]),
        st.floats(0, 100),
        code=st.integers(-9, 1),
        phase=st.sampled_from(["started", "torch", "store", "group", "collective"]),
        type=st.just("ValueError"),
        message=st.just("bad"),
    ),
    max_size=20,
)


@given(EVENTS)
def test_a_replay_is_the_run(events: list[Event]) -> None:
    """Event by event or all at once from disk: the same state, and the counts agree with the children."""
    live = Run(id="r")
    for event in events:
        live.apply(event)
    assert Run.replay("r", events) == live
    now = live.generation
    children = now.children.values()
    assert now.running == sum(child.state == "started" for child in children)
    assert now.exited == sum(child.state == "exited" for child in children)
    assert all(now.phases[phase] == sum(child.phase is phase for child in children) for phase in Phase)


def test_the_first_death_is_the_earliest_and_not_the_first_that_arrived() -> None:
    """Two nodes' events cross on their way: the corrected time decides; a clean exit is no death."""
    run = Run.replay(
        "r",
        [
            _event("exited", "n3", at=1.0, code=0),
            _event("exited", "n1", at=9.0, code=1),
            _event("exited", "n2", at=5.0, code=-9),
            _event("failed", "n4", at=7.0, why="no such file"),
        ],
    )
    assert run.generation.first_death is not None
    assert run.generation.first_death.node == "n2"
    assert run.generation.children["n4", "0"].why == "no such file"


def test_an_exception_counts_from_when_it_was_raised() -> None:
    """Taking a process down lasts; who raised first is first, though a peer that it took along was gone sooner."""
    run = Run.replay(
        "r",
        [
            _event("raised", "n1", at=1.0, type="ValueError", message="bad"),
            _event("exited", "n2", at=1.2, code=1),
            _event("exited", "n1", at=1.5, code=1),
        ],
    )
    assert run.generation.first_death is not None
    assert run.generation.first_death.node == "n1"


def test_phases_only_go_forward() -> None:
    """A later one implies those before; one that comes late, or that nobody knows, changes nothing."""
    run = Run.replay("r", [_event("started"), _event("phase", phase="group", at=2.0), _event("phase", phase="torch")])
    child = run.generation.children["n1", "0"]
    assert (child.phase, child.since, run.generation.moved) == (Phase.GROUP, 2.0, 2.0)
    run.take(Measurement(node="n1", child="0", at=3.0, values={"step": 1}))
    assert child.phase is Phase.STEPS


def test_a_new_generation_begins_with_nothing() -> None:
    """What died in the one before says nothing of this one."""
    run = Run.replay("r", [_event("exited", code=1), _event("gone"), _event("generation", "", "", number=2)])
    assert run.generation.number == 2
    assert run.generation.first_death is None
    assert not run.generation.children
    assert not run.generation.lost


def test_of_samples_the_latest_wins() -> None:
    """One for each child; a run of weeks holds no more than that."""
    run = Run(id="r")
    for step in range(100):
        run.take(Measurement(node="n1", child="0", at=float(step), values={"step": step}))
    assert [sample.values["step"] for sample in run.samples.values()] == [99]


def test_a_start_shows_no_value_of_its_env() -> None:
    """A traceback or a log line is no place for a token."""
    assert "hf_token" not in repr(Start(child="0", argv=("true",), env={"TOKEN": "hf_token"}))


# -- decisions


def test_all_well_goes_on_until_every_rank_has_finished() -> None:
    """One that finishes early ends nothing."""
    run = Run.replay("r", [_event("started"), _event("exited", code=0)])
    assert decide(run, 2) is None
    run.apply(_event("exited", "n2", "1", code=0))
    end = decide(run, 2)
    assert end is not None
    assert (end.why, end.stacks) == ("every rank has finished", False)


def test_the_first_failure_ends_all_with_stacks() -> None:
    """A death, a start that failed, a node that is gone, a rank that was stopped."""
    for event in (
        _event("exited", code=1),
        _event("failed", why="can't enter /x"),
        _event("gone", why="no contact"),
    ):
        end = decide(Run.replay("r", [_event("started"), event]), 2)
        assert end is not None
        assert end.stacks
        assert not end.again
    end = decide(Run.replay("r", [_event("started"), _event("stopped")]), 2)
    assert end is not None
    assert end.why == "rank 0 on n1 was stopped"


def test_a_node_that_is_gone_after_its_end_is_no_failure() -> None:
    """A supervisor leaves when it has told all."""
    assert decide(Run.replay("r", [_event("started"), _event("ended"), _event("gone")]), 2) is None


def test_a_port_that_was_taken_meanwhile_is_tried_again_elsewhere() -> None:
    """Only rank 0, only before its store is up, only a few times, and not when the user named the port."""
    taken = [
        _event("started"),
        _event("raised", type="DistNetworkError", message="... EADDRINUSE, address already in use"),
        _event("exited", code=1),
    ]
    end = decide(Run.replay("r", taken), 2)
    assert end is not None
    assert end.again
    for others in (
        decide(Run.replay("r", taken), 2, may_move=False),
        decide(Run.replay("r", [*[_event("restarting", why="x")] * 2, *taken]), 2),
        decide(Run.replay("r", [_event("phase", phase="store"), *taken]), 2),
        decide(Run.replay("r", [_event("exited", child="1", code=1)]), 2, stderr_tail=Untrusted("EADDRINUSE")),
    ):
        assert others is not None
        assert not others.again
    said = decide(
        Run.replay("r", [_event("exited", code=1)]), 2, stderr_tail=Untrusted("[Errno 98] Address already in use")
    )
    assert said is not None
    assert said.again
