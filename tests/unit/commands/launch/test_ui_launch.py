"""A launch as it goes on: the live view over a terminal, and plain lines into a pipe."""

import io
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from made_events import made_event
from rich.console import Console
from rich.text import Text
from run_states import RUN, Scene, cluster, dead, plan_of, training

from aboard.commands.launch.launch_view import LineBacklog, show_end
from aboard.commands.launch.view.live_view import LaunchLiveView
from aboard.commands.launch.view.plain_lines import PlainLaunchWriter
from aboard.commands.launch.view.roster_view import RosterView
from aboard.commands.shared.log_lines import LogLineFormatter
from aboard.commands.shared.printed_output import build_console
from aboard.core.launchers.capture_failures import build_late_failure
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_progress import RunProgress, Stall
from aboard.core.run.run_state import Run
from aboard.engine.background_run import StartReporter, format_started
from aboard.engine.launch_run import LaunchResult
from aboard.engine.records.read_logs import LogFollower, LogQuery
from aboard.record.rank_logs.log_reader import LogReader
from aboard.record.rank_logs.merged_logs import LineSelection
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record
from aboard.record.slurm_job import SlurmJob, write_slurm_job

if TYPE_CHECKING:
    from aboard.engine.conductor.conductor import Conductor


@pytest.mark.parametrize(
    ("ranks", "nodes", "said"),
    [
        (1, 1, "started 1 rank on 1 node, running in the background"),
        (2, 1, "started 2 ranks on 1 node, running in the background"),
        (16, 2, "started 16 ranks on 2 nodes, running in the background"),
    ],
)
def test_a_run_goes_on_in_the_background(ranks: int, nodes: int, said: str) -> None:
    """How many there are is said as a person would."""
    assert format_started(ranks, nodes) == said


class Terminal:
    """What a terminal shows of what was written: rows of text, a cursor, and the few sequences that rich sends."""

    def __init__(self, width: int, height: int) -> None:
        self.file = io.StringIO()
        self.console = Console(
            file=self.file, width=width, height=height, force_terminal=True, highlight=False, color_system=None
        )

    def shown(self) -> list[str]:
        rows, row, text = [""], 0, self.file.getvalue()
        while text:
            if text.startswith("\x1b["):
                end = next(place for place, char in enumerate(text) if place > 1 and char.isalpha())
                code, text = text[: end + 1], text[end + 1 :]
                if code == "\x1b[2K":
                    rows[row] = ""
                elif code == "\x1b[1A":
                    row -= 1
            else:
                char, text = text[0], text[1:]
                if char == "\n":
                    row += 1
                    rows += [""] * (row + 1 - len(rows))
                elif char != "\r":
                    rows[row] += char
        return [line.rstrip() for line in rows]


def test_the_roster_stays_below_what_is_said() -> None:
    """Lines of ranks stand above in their order, once each, as long as they are; the roster is there once."""
    terminal = Terminal(80, 24)
    live = LaunchLiveView(terminal.console, clock=lambda: 0.0)
    live.say("[ranks 0-15] hello")
    live.update(training(16, 1))
    live.say("[rank 3] " + "long " * 30 + "end")
    live.say(Text("[rank 4] \x1b not obeyed"))
    live.update(training(16, 1))
    shown = terminal.shown()
    assert shown[0] == "[ranks 0-15] hello"
    assert shown[1].startswith("[rank 3] long")
    assert shown[3].endswith("end")
    assert shown[4].startswith("[rank 4]")
    assert shown[5].startswith(f"── {RUN}")
    assert sum(RUN in line for line in shown) == 1


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_what_a_rank_says_breaks_between_words(width: int) -> None:
    """Lines of metrics and of tracebacks; only a word that is wider than the terminal is left to it."""
    metrics = "05:07:12.123 [rank 0] step 12/345 · loss 3.2145 · lr 3.00e-03 · norm 1.25 · 810 tokens/s · 3 min left"
    frame = f'05:07:12.123 [rank 0 stderr]   File "/home/ada/{"deep/" * 30}train.py", line 31, in main'
    terminal = Terminal(width, 24)
    live = LaunchLiveView(terminal.console, clock=lambda: 0.0)
    live.update(training(2, 8))
    for said in (metrics, frame):
        live.say(said)
    live.close()
    shown = [line for line in terminal.shown() if line]
    assert " ".join(" ".join(shown).split()) == " ".join(f"{metrics} {frame}".split())
    assert [line for line in shown if len(line) > width] == [line for line in shown if "deep/" in line]


def test_closing_leaves_only_what_was_said() -> None:
    """The roster is gone, what waited to be printed is not, and closing again does nothing."""
    terminal = Terminal(80, 24)
    live = LaunchLiveView(terminal.console, clock=lambda: 0.0)
    live.update(training(2, 8))
    live.say("one")
    live.say("two")
    live.close()
    live.close()
    assert [line for line in terminal.shown() if line] == ["one", "two"]


def test_a_flood_is_printed_in_lots() -> None:
    """A thousand lines between two pictures draw the roster twice, not a thousand times."""
    terminal = Terminal(80, 24)
    live = LaunchLiveView(terminal.console, clock=lambda: 5.0)
    live.update(training(16, 1))
    for number in range(1000):
        live.say(f"line {number}")
    live.update(training(16, 1))
    live.close()
    assert terminal.file.getvalue().count(RUN) <= 5
    assert [line for line in terminal.shown() if line] == [f"line {number}" for number in range(1000)]


def test_what_is_said_before_any_roster_is_printed_at_once() -> None:
    """The check's findings come before the first picture."""
    terminal = Terminal(80, 24)
    LaunchLiveView(terminal.console).say("findings")
    assert terminal.shown() == ["findings", ""]


def lines_of(rosters: Iterable[RunProgress]) -> list[str]:
    lines: list[str] = []
    plain = PlainLaunchWriter(lines.append)
    for roster in rosters:
        plain.update(roster)
    return lines


def test_a_start_as_lines() -> None:
    """Each phase that all have come to, counts on the way, who is behind after 5 s, and nothing twice."""
    scene = Scene(2, 2)
    moments = [scene.at(0.0)]
    scene.held()
    scene.come(1.0, Phase.STARTED)
    scene.come(1.0, Phase.PYTHON)
    moments += [scene.at(2.0), scene.at(2.2)]
    scene.come(2.0, Phase.TORCH, range(2))
    moments += [scene.at(2.6), scene.at(2.8)]
    scene.come(2.9, Phase.TORCH, range(2, 3))
    moments += [scene.at(3.0), *(scene.at(4.0 + second) for second in range(35))]
    scene.come(39.0, Phase.TORCH)
    moments.append(scene.at(40.0))
    assert lines_of(moments) == [
        f"run {RUN}: train.py, 4 ranks on 2 nodes, master 10.0.0.1:29500",
        "phase started 4/4 2.0 s",
        "phase python 4/4 2.0 s",
        "phase torch 2/4 2.6 s",
        "phase torch 3/4 4.0 s",
        "waiting for n2 rank 3: Python started, for 5.2 s",
        "waiting for n2 rank 3: Python started, for 35 s",
        "phase torch 4/4 40 s",
    ]


def test_steps_as_lines() -> None:
    """The first step at once, then one line in 30 s however often it is asked."""
    begun = training(16, 1)
    later = [replace(begun, now=begun.now + quarter / 4, step=1200 + quarter) for quarter in range(250)]
    steps = [line for line in lines_of(later) if line.startswith("step")]
    assert steps == ["step 1200 0.35 s/step", "step 1320 0.35 s/step", "step 1440 0.35 s/step"]


def test_a_compilation_is_told_if_it_lasts() -> None:
    """Ranks that compile are named as such after 5 s, and so is the end; short ones are not told."""
    begun = training(16, 1)
    busy = replace(begun, rows=tuple(replace(row, compiling=1) for row in begun.rows))
    moments = [replace(busy if second < 60 else begun, now=begun.now + second) for second in range(62)]
    told = [line for line in lines_of([begun, *moments]) if "compil" in line]
    assert told == ["compiling on 16/16 ranks", "compiled after 1 min"]
    assert not [line for line in lines_of([busy, begun]) if "compil" in line]
    terminal = Terminal(80, 24)
    LaunchLiveView(terminal.console, clock=lambda: 0.0).update(busy)
    assert any("compiling on 16/16 ranks" in line for line in terminal.shown())


def test_a_node_falls_silent_and_is_back() -> None:
    """A late beat is no news; a silence is told, told again after 30 s, and so is its end."""
    scene = Scene(2, 1)
    scene.held()
    scene.event(10.0, "cut", "n2", why="no beat")
    moments = [scene.at(11.0), scene.at(12.5), scene.at(13.0), scene.at(43.0)]
    scene.event(50.0, "held", "n2")
    moments += [scene.at(50.0), scene.at(51.0)]
    assert [line for line in lines_of(moments) if line.startswith("node")] == [
        "node n2: silent for 2.5 s: no beat",
        "node n2: silent for 33 s: no beat",
        "node n2 back after 40 s",
    ]


def test_a_death_as_lines() -> None:
    """The rank and its exception at once, then that the run ends; deaths that follow are not told again."""
    first = dead(16, 1)
    after = [replace(each, ranks=(0,), why="exited with code -15") for each in first.missing[:1]]
    second = replace(first, missing=(*first.missing, *after))
    third = replace(second, finished="rank 8 on n09 died")
    lines = lines_of([first, first, second, third, third])
    assert lines[-3:] == [
        "dead: n09 rank 8, ModuleNotFoundError: No module named 'flash_attn', 1.0 s ago",
        "stopping: rank 8 died",
        "finished: rank 8 on n09 died",
    ]


def test_ranks_that_wait_for_their_image_are_shown() -> None:
    """A large image takes minutes to unpack: even if no rank has started yet, the reason is one line."""
    scene = Scene(2, 2)
    scene.held()
    for node, start in scene.plan.starts():
        scene.event(1.0, "unpacking", node, start.child)
    lines = lines_of([scene.at(second) for second in range(2, 10)])
    assert lines[1:] == ["waiting for n[1-2] ranks 0-3: unpacking the image, for up to 5.0 s"]
    scene.come(10.0, Phase.STARTED)
    assert scene.at(12.0).phase is Phase.STARTED
    assert scene.at(12.0).missing == ()


@pytest.mark.ci
def test_a_thousand_late_nodes_are_few_lines() -> None:
    """Equal reasons are told together."""
    scene = Scene(1000, 8)
    scene.held()
    scene.come(1.0, Phase.STARTED, range(8))
    lines = lines_of([scene.at(second / 4) for second in range(8, 48)])
    assert [line for line in lines if line.startswith("waiting")] == [
        "waiting for n[0002-1000] ranks 8-7999: not started yet, for up to 5.0 s",
    ]


def test_another_attempt_begins_anew() -> None:
    """What was told of the generation before may be told again."""
    scene = Scene(1, 1)
    scene.come(1.0, Phase.STARTED)
    moments = [scene.at(2.0)]
    scene.event(10.0, "generation", number=2)
    moments.append(scene.at(10.0))
    scene.come(11.0, Phase.STARTED)
    moments.append(scene.at(12.0))
    assert lines_of(moments)[1:] == [
        "phase started 1/1 2.0 s",
        "attempt 2: restarting all ranks",
        "phase started 1/1 2.0 s",
    ]


def test_a_stall_is_told_once_with_its_fix() -> None:
    """The same verdict again is no news; another one is; a wait that is part of the work is none."""
    said: list[str] = []
    plain = PlainLaunchWriter(said.append)
    stall = Stall(code="hang-absent", grave=True, nodes=("n2",), seen="rank 3 on n2 sleeps", fix="aboard logs")
    given = training(2, 1)
    for number, told in enumerate((None, stall, stall, replace(stall, grave=False), None)):
        plain.update(replace(given, now=given.now + number, stall=told))
    stuck = [line for line in said if line.startswith(("stuck", "fix", "progress"))]
    assert stuck == ["stuck hang-absent n2: rank 3 on n2 sleeps", "fix aboard logs", "progress again after 2.0 s"]


def test_a_slow_rank_is_not_called_stuck() -> None:
    """The line of a run that is slow starts with that word, and says which rank and by how much."""
    said: list[str] = []
    seen = "rank 2 on n3 arrived 1.0 s later than the others at 9 of the last 48 collectives"
    stall = Stall(code="slow-rank", grave=True, nodes=("n3",), seen=seen, fix="py-spy dump --pid 7")
    PlainLaunchWriter(said.append).update(replace(training(2, 1), stall=stall))
    assert f"slow slow-rank n3: {seen}" in said
    assert not any(line.startswith("stuck") for line in said)


def test_what_a_record_lacks_is_told_at_intervals() -> None:
    """A node that floods is named on the screen and in lines, without a line for each new count."""
    given = training(2, 1)
    floods = [
        replace(given, now=given.now + number, notices=(f"n2 sent more events than a run keeps: {count} dropped",))
        for number, count in ((0, 1), (1, 2), (40, 9))
    ]
    dropped = [line.rpartition(": ")[2] for line in lines_of(floods) if line.startswith("dropped n2 sent")]
    assert dropped == ["1 dropped", "9 dropped"]
    console = Console(width=100, height=40, file=StringIO(), force_terminal=False)
    with console.capture() as shown:
        console.print(RosterView(floods[-1]))
    assert "! n2 sent more events than a run keeps: 9 dropped" in shown.get()


def test_a_run_in_the_background_tells_what_was_said_before_its_ranks_started(tmp_path: Path) -> None:
    """What a training needs and how many steps it takes goes to the conductor's log, and to whoever started it."""
    run = RunDirectory(tmp_path)
    run.conductor_log.write_text("memory 2.1 GiB per rank\nplan 345 steps\n")
    plan = plan_of(cluster(1), ranks=1)
    started = made_event("started", node="n1", seq=1, at=1.0, child="0")
    read_end, write_end = os.pipe()
    conductor = SimpleNamespace(plan=plan, run=Run.replay("r", [started]))
    reporter = StartReporter(run, write_end)
    reporter.began(cast("Conductor", conductor))
    reporter.tick(1.0)
    with os.fdopen(read_end) as pipe:
        said = pipe.read().splitlines()
    assert said[:3] == ["0", "memory 2.1 GiB per rank", "plan 345 steps"]
    assert "started 1 rank on 1 node" in said[3]


def test_after_a_flood_of_one_rank_the_others_are_shown_again(tmp_path: Path) -> None:
    """What there was no time for is skipped, which is said; what is printed after that is shown."""
    run = RunDirectory(tmp_path / "20261115-0800-brave-otter")
    run.make()
    record = Record.open(run, ranks=2)
    record.add_output("n1", 0, "stdout", b"flood\n" * 10_000, 1.0)
    record.tick(2.0)
    reader, shown = LogReader(run.logs), list[str]()
    follower = LogFollower(reader, LogQuery(selection=LineSelection()))
    backlog = LineBacklog(follower, LogLineFormatter(styled=False), patience=0.0)
    assert not backlog.show(shown.append, 0.0)
    assert backlog.show(shown.append, 60.0)
    record.add_output("n1", 1, "stdout", b"step 1\n", 3.0)
    record.tick(4.0)
    record.close()
    assert backlog.show(shown.append, 60.0)
    reader.close()
    assert [line.rpartition("] ")[2] for line in shown] == [
        "flood",
        "… lines are skipped, since ranks print faster than they are shown: aboard logs -n all",
        "step 1",
    ]


def test_fixes_work_where_only_a_node_has_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without shared homes, commands that read this record go through srun; others are typed as they are."""
    run = RunDirectory(tmp_path / "20261115-0800-brave-otter")
    run.path.mkdir()
    write_slurm_job(run, SlurmJob(id=7, batch_host="n1"))
    late = build_late_failure(run.id, "n1", "ended with exit code 1")
    again = build_late_failure("20261115-0800-other-otter", "n1", "ended with exit code 1")
    result = LaunchResult(report=None, refused=(replace(late, consequences=(again,)),))
    for is_submitted, reader in ((False, ""), (True, f"srun --nodes=1 --ntasks=1 --nodelist=n1 {sys.executable} -m ")):
        show_end(build_console(), run, result, command="aboard launch -- bash run.sh", is_submitted=is_submitted)
        shown = capsys.readouterr().out
        assert f" {reader}aboard logs {run.id} --script -n all    # what the script printed" in shown
        assert "-m aboard logs 20261115-0800-other-otter" not in shown
