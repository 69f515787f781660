"""A Slurm job as lines in a pipe, and on a terminal."""

import io
from datetime import datetime

import pytest
from rich.console import Console

from aboard.commands.launch.view.job_view import JobView
from aboard.core.slurm.job_state import JobStatus
from aboard.diagnoses.untrusted import Untrusted

RUN = "20261116-1930-brave-otter"
RESOURCES = Untrusted("Resources")


class Watch:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 16, 19, 0)  # noqa: DTZ001 - Slurm's times have no zone

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


def build_view(out: io.StringIO, clock: Watch, *, terminal: bool = False) -> JobView:
    console = Console(file=out, force_terminal=terminal, width=60, highlight=False, _environ={"TERM": "xterm"})
    return JobView(console, RUN, clock=clock)


def test_a_pipe_gets_a_line_for_each_change(out: io.StringIO) -> None:
    """A countdown is no change; another estimate is."""
    clock = Watch()
    view = build_view(out, clock)
    waiting = JobStatus(id=12, state="PENDING", reason=RESOURCES, start="2026-11-16T21:00:00")
    view.show(waiting)
    clock.now = clock.now.replace(minute=10)
    view.show(waiting)
    view.show(JobStatus(id=12, state="PENDING", reason=RESOURCES, start="2026-11-16T21:30:00"))
    view.show(JobStatus(id=12, state="RUNNING", nodes="n[1-4]"))
    view.show(JobStatus(id=12, state="COMPLETED", exit_code=0))
    view.close()
    waits = "job 12 is waiting: the nodes or GPUs it needs are in use (Resources); estimated start"
    assert out.getvalue().splitlines() == [
        f"{waits} 21:00, in 2 h",
        f"{waits} 21:30, in 2 h 20 min",
        "job 12 is running on n[1-4]",
    ]


def test_a_job_that_cannot_start_says_so_once(out: io.StringIO) -> None:
    """With the commands that explain and end it."""
    view = build_view(out, Watch())
    held = JobStatus(id=12, state="PENDING", reason=Untrusted("JobHeldUser"))
    view.show(held)
    view.show(held)
    view.close()
    assert out.getvalue().splitlines() == [
        "job 12 does not start by itself: you put it on hold (JobHeldUser)",
        f"    aboard why {RUN}",
        f"    aboard stop {RUN}",
        "job 12 is waiting: you put it on hold (JobHeldUser); Slurm has no estimate of its start",
    ]


def test_output_comes_in_whole_lines(out: io.StringIO) -> None:
    """Chunks end anywhere, also inside a character; the last line may have no end."""
    view = build_view(out, Watch())
    for data in (b"first\nsec", b"ond \xe2\x82", b"\xac\nlast \x1b[31m"):
        view.write(data)
    assert out.getvalue() == "first\nsecond €\n"
    view.close()
    assert out.getvalue().startswith("first\nsecond €\nlast ")


def test_a_terminal_gets_no_control_characters_of_the_output(out: io.StringIO) -> None:
    """A rank's escape sequences are shown, not obeyed."""
    view = build_view(out, Watch(), terminal=True)
    view.write(b"evil \x1b]0;title\x07\n")
    view.close()
    assert "\x1b]0;" not in out.getvalue()
    assert "evil \\x1b]0;title\\x07" in out.getvalue()
