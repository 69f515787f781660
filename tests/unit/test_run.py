"""A run is a fold over its events, the same live and replayed."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aboard.core.event import Event, Sample
from aboard.core.plan import Start
from aboard.core.run import Run


def _event(kind: str, node: str = "n1", child: str = "0", at: float = 1.0, **data: Any) -> Event:
    return Event(node=node, seq=1, at=at, kind=kind, child=child, data=data)


EVENTS = st.lists(
    st.builds(
        _event,
        st.sampled_from(["started", "exited", "failed", "ending", "ended", "new kind"]),
        st.sampled_from(["n1", "n2"]),
        st.sampled_from(["0", "1"]),
        st.floats(0, 100),
        code=st.integers(-9, 1),
    ),
    max_size=20,
)


@settings(deadline=None)
@given(EVENTS)
def test_a_replay_is_the_run(events: list[Event]) -> None:
    """Event by event or all at once from disk: the same state."""
    live = Run(id="r")
    for event in events:
        live.apply(event)
    assert Run.replay("r", events) == live


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


def test_a_new_generation_begins_with_nothing() -> None:
    """What died in the one before says nothing of this one."""
    run = Run.replay("r", [_event("exited", code=1), _event("ended"), _event("generation", "", "", number=2)])
    assert run.generation.number == 2
    assert run.generation.first_death is None
    assert not run.generation.children
    assert not run.ended_nodes


def test_of_samples_the_latest_wins() -> None:
    """One value for each node, rank and name; a run of weeks holds no more than that."""
    run = Run(id="r")
    for step in range(100):
        run.take(Sample(node="n1", name="step", at=float(step), value=float(step), rank=0))
    assert [sample.value for sample in run.samples.values()] == [99.0]


def test_a_start_shows_no_value_of_its_env() -> None:
    """A traceback or a log line is no place for a token."""
    assert "hf_token" not in repr(Start(child="0", argv=("true",), env={"TOKEN": "hf_token"}))
