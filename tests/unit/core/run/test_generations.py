"""A run that starts again, replayed from its events: each attempt is judged by its own evidence."""

from collections.abc import Sequence
from typing import Any

from made_events import made_event

from aboard.core.run.end_decision import PORTS_TRIED, EndDecision, decide
from aboard.core.run.events import Event, Measurement
from aboard.core.run.run_state import Run
from aboard.diagnoses.untrusted import Untrusted

PORT_TAKEN = Untrusted(
    "[Errno 98] Address already in use: The server socket has failed to listen on port 29500 EADDRINUSE"
)
RECOVERING = ("", "recovering", {"code": "run-killed", "seen": "rank 1 died", "why": "again", "action": "restart"})

Line = tuple[str, str, dict[str, Any]]


def build_events(lines: Sequence[Line], at: float = 0.0) -> list[Event]:
    """A second apart, with the number of the node's only rank as child where they are about it."""
    events: list[Event] = []
    for node, kind, data in lines:
        child = {"n1": "0", "n2": "1"}.get(node, "") if kind in ("started", "exited", "stopped", "nested") else ""
        events.append(made_event(kind, node=node, at=at + len(events), child=child, **data))
    return events


def replay(lines: Sequence[Line]) -> Run:
    return Run.replay("brave-otter", build_events(lines))


def begin(number: int) -> list[Line]:
    return [
        ("", "generation", {"number": number}),
        *((node, kind, {}) for node in ("n1", "n2") for kind in ("held", "started")),
    ]


def decide_end(run: Run) -> EndDecision | None:
    return decide(run, 2, stderr_tail=PORT_TAKEN)


DEATH: list[Line] = [("n1", "exited", {"code": 1})]
MOVE: Line = ("", "restarting", {"why": "the port was in use"})


def test_the_evidence_of_an_attempt_ends_with_it() -> None:
    """Deaths, lost nodes, stopped ranks, old supervisors and launchers of the last attempt decide nothing now."""
    bad: list[Line] = [
        ("n2", "exited", {"code": -9}),
        ("n2", "gone", {"why": "no contact"}),
        ("n1", "stopped", {}),
        ("n1", "ending", {"cause": "lease", "why": "the lease expired"}),
        ("n1", "nested", {"command": ["torchrun"]}),
        ("n1", "port_taken", {"port": 29500, "uid": 0, "beside": True}),
        ("", "deciding", {"why": "rank 1 died", "death": True}),
    ]
    run = replay([*begin(1), *bad])
    assert decide_end(run) is not None
    run.take(Measurement(node="n1", at=1.0, child="0", values={"step": 40.0}, metrics={}))
    for event in build_events([RECOVERING, *begin(2)], at=20.0):
        run.apply(event)
    assert decide_end(run) is None
    assert (run.step, run.samples, run.generation.lost, run.generation.supervisor_ends) == (None, {}, [], {})
    assert [(end.number, end.step, end.code) for end in run.recoveries] == [(1, 40, "run-killed")]


def test_other_ports_are_tried_a_limited_number_of_times_in_each_attempt() -> None:
    """Moves count apart from restarts, and from anew after each."""

    def count_moves(lines: list[Line], number: int) -> int:
        """How often the port moves until rank 0's death is one."""
        moves = 0
        while (end := decide_end(replay([*lines, *begin(number), *DEATH]))) is not None and end.again:
            lines += [*begin(number), *DEATH, MOVE]
            number, moves = number + 1, moves + 1
        return moves

    lines: list[Line] = []
    assert count_moves(lines, 1) == PORTS_TRIED - 1
    lines += [*begin(PORTS_TRIED), *DEATH, RECOVERING]
    assert count_moves(lines, PORTS_TRIED + 1) == PORTS_TRIED - 1
    run = replay(lines)
    assert len(run.recoveries) == 1
