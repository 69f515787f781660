"""Each attempt of a run has its number: in the fold, in the summary, and at each line of its output."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from made_events import made_event

from aboard.commands.runs.logs_command import AttemptTimes
from aboard.core.run.events import Event
from aboard.core.run.run_progress import describe_attempt
from aboard.core.run.run_state import GenerationEnd, Run
from aboard.diagnoses.untrusted import Untrusted

EVENTS: tuple[tuple[float, str, dict[str, Any]], ...] = (
    (10.0, "generation", {"number": 1}),
    (11.0, "started", {}),
    (60.0, "deciding", {"why": "rank 0 died", "death": True}),
    (
        61.0,
        "recovering",
        {"code": "gpu-lost", "seen": "lost", "failure": "node", "action": "replace", "why": "n3 takes over"},
    ),
    (80.0, "generation", {"number": 2}),
    (90.5, "started", {}),
)


def list_events(*more: tuple[str, object]) -> list[Event]:
    return [
        made_event(
            kind,
            node="n1",
            at=at,
            child="0" if kind == "started" else "",
            **data,
            **dict(more) if kind == "recovering" else {},
        )
        for at, kind, data in EVENTS
    ]


def test_the_end_of_an_attempt_is_one_line() -> None:
    """With its cause, its nodes, what was done, and for how long no rank ran; an older record has no nodes."""
    run = Run.replay("r", list_events(("nodes", ["n2"])))
    assert [str(end) for end in run.recoveries] == [
        "attempt 1: gpu-lost on n2: lost; replace: n3 takes over; no ranks for 30 s"
    ]
    (older,) = Run.replay("r", list_events()[:4]).recoveries
    assert str(older) == "attempt 1: gpu-lost: lost; replace: n3 takes over"


def test_the_pause_is_the_time_without_training() -> None:
    """From the first sign of the failure to the first step of the new ranks: not only while no process ran."""
    cut = made_event("cut", node="n1", at=56.0, why="no answer")
    gone = made_event("gone", node="n1", at=59.5, why="lost")
    steps = made_event("stepping", node="", at=99.0, start=5)
    first, started, *rest = list_events()
    run = Run.replay("r", [first, started, cut, gone, *rest, steps])
    (end,) = run.recoveries
    assert str(end).endswith("; no training for 43 s (39 s until the new ranks trained, 4.0 s to detect it)")


def test_what_to_type_about_an_attempt_is_told_after_the_run_has_recovered() -> None:
    """Below the attempt's line, and without the colors that a record may claim; not if the run ended with it."""
    (end,) = Run.replay("r", list_events(("fix", "ssh n2 sudo reboot\n# \x1b[31mthen check it"))).recoveries
    assert describe_attempt(end) == f"{end}\n    ssh n2 sudo reboot\n    # \\x1b[31mthen check it"
    assert describe_attempt(replace(end, action="stop")) == str(replace(end, action="stop"))


def test_another_decision_replaces_the_first() -> None:
    """A spare that failed its check did not take over."""
    run = Run.replay("r", list_events()[:4])
    data = {**EVENTS[3][2], "action": "wait", "why": "there is no spare", "again": True}
    run.apply(made_event("recovering", node="", at=62.0, **data))
    assert [(end.number, end.action) for end in run.recoveries] == [(1, "wait")]


def test_a_spare_is_left_out_until_it_passes() -> None:
    """The state has the reason."""
    run = Run(id="r")
    run.apply(made_event("spare", node="n3", at=1.0, why="n3 is down"))
    assert run.unfit_spares == {"n3": "n3 is down"}
    run.apply(made_event("spare", node="n3", at=2.0, why=""))
    assert run.unfit_spares == {}


def test_late_copies_are_told_while_the_run_goes_on() -> None:
    """Once two checkpoints have been saved since the one that a node has its copies of, until it has caught up."""
    run = Run(id="r")

    def save(node: str, serial: int, *, copied: bool = False) -> list[str]:
        data = {"checkpoint": Untrusted(f"step-{serial}"), "serial": serial, "copied": copied}
        run.apply(made_event("saved", node=node, at=float(serial), **data))
        return list(run.describe_uncopied())

    assert (save("n1", 1), save("n2", 1, copied=True), save("n1", 2), save("n2", 2)) == ([], [], [], [])
    late = "the copies on n2 are late: two checkpoints have been saved since the last one it has"
    assert save("n1", 3) == [late]
    assert save("n2", 2, copied=True) == []
    run.apply(made_event("uncopied", node="n2", at=4.0, checkpoint="step-3", obstacle="full", why="0 B"))
    assert list(run.describe_uncopied()) == ["step-3 is not copied to n2: 0 B"]


def test_a_line_belongs_to_the_attempt_of_its_time(tmp_path: Path) -> None:
    """Also in a run that goes on; one that had only one attempt has no numbers."""
    file = tmp_path / "events.jsonl"
    times = AttemptTimes(file)
    assert times.find_attempt(5.0) is None
    lines = [json.dumps({"at": at, "node": "", "seq": 0, "kind": kind, "data": data}) for at, kind, data in EVENTS]
    file.write_text("\n".join(lines[:4]) + "\n")
    assert times.find_attempt(15.0) is None
    file.write_text("\n".join(lines) + "\n")
    assert [times.find_attempt(at) for at in (5.0, 15.0, 79.9, 80.0, 1e9)] == [1, 1, 1, 2, 2]


def test_an_attempt_without_a_step_or_a_code_has_a_line() -> None:
    """What is unknown is left out."""
    assert str(GenerationEnd(number=3, at=0.0, step=1200, action="stop", why="restarts are off")) == (
        "attempt 3: failed at step 1,200; stop: restarts are off"
    )
