"""The roster at moments of runs: whole pictures compared, and bounds that hold for any run on any terminal."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from made_findings import made_finding
from rich.cells import cell_len
from rich.console import Console
from run_states import Scene, dead, silent, starting, training

from aboard.commands.launch.view.plain_lines import PlainLaunchWriter
from aboard.commands.launch.view.roster_view import SPARE, RosterView, clean_line
from aboard.core.run.rank_phases import Phase
from aboard.core.run.recovery.recovery_policy import StallAction
from aboard.core.run.run_progress import MissingRanks, NodeRow, RunProgress, Stall, build_stall
from aboard.diagnoses import Severity
from aboard.diagnoses.untrusted import Untrusted

GOLDEN = Path(__file__).parents[3] / "golden" / "ui"
SCENES: dict[str, Callable[[int, int], RunProgress]] = {
    "starting": starting,
    "training": training,
    "dead": dead,
    "silent": silent,
}


def drawn(roster: RunProgress, width: int, height: int, *, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(file=out, width=width, height=height, color_system=None, highlight=False)
    console.print(RosterView(roster), crop=False)
    out.flush()
    return raw.getvalue().decode(encoding)


def picture(scene: str, nodes: int, ranks: int) -> None:
    """Compares both sizes in one test, since thousands of ranks take longer to make than to draw."""
    roster = SCENES[scene](nodes, ranks)
    for width, height in ((80, 24), (200, 50)):
        text = drawn(roster, width, height)
        assert text == (GOLDEN / f"roster-{scene}-{nodes}-{width}.txt").read_text("utf-8")


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 4), (2, 8), (16, 1)])
@pytest.mark.parametrize("scene", SCENES)
def test_a_picture(scene: str, nodes: int, ranks: int) -> None:
    """How far all are, whom they wait for since when, nodes that are alike on one line, the last lines of a rank."""
    picture(scene, nodes, ranks)


@pytest.mark.ci
@pytest.mark.parametrize("scene", SCENES)
def test_a_picture_of_a_thousand_nodes(scene: str) -> None:
    """As above, and still on one screen."""
    picture(scene, 1000, 8)


@pytest.mark.ci
def test_a_full_node_stands_out() -> None:
    """A node whose memory is nearly used up has a line of its own among a thousand that train."""
    lines = drawn(training(1000, 8, full="n0500"), 80, 24).splitlines()
    at = next(place for place, line in enumerate(lines) if line.startswith("node "))
    assert lines[at + 1].startswith("n0500 ")
    assert "93 %" in lines[at + 1]
    assert lines[at + 2].startswith("999 nodes n[0001-0499,05")


def test_what_ends_is_told_without_the_late() -> None:
    """Nobody waits for those behind in a run that is being ended; the dead are named."""
    text = drawn(dead(16, 1), 200, 50)
    assert "dead: n09 rank 8, ModuleNotFoundError: No module named 'flash_attn', 1.0 s ago" in text
    assert "Python started, for" not in text


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize(
    "seen",
    [
        "rank 3 on n2 waits for a lock or another thread at train.py:31 in wait_for_luck; 7 other ranks wait for it",
        "rank 3 on n2 waits in the kernel for /data/shards/part-7.bin (nfs_wait) at data.py:9 in next_batch",
    ],
)
def test_why_a_run_is_stuck_is_told_whole_and_between_words(seen: str, width: int) -> None:
    """The verdict goes on in the next line."""
    stall = Stall(code="hang-lock", grave=True, nodes=("n2",), seen=seen, fix="aboard logs")
    lines = drawn(replace(training(2, 8), stall=stall), width, 24).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("stuck"))
    last = next(number for number, line in enumerate(lines) if line.startswith("  fix"))
    assert " ".join(" ".join(lines[first:last]).split()) == f"stuck hang-lock {seen}"
    assert all(len(line) <= width for line in lines)


def test_it_is_shown_when_a_stuck_run_is_restarted() -> None:
    """In seconds, on the screen and by `aboard status`; a line of a pipe says it once."""
    found = made_finding(
        code="hang-lock",
        nodes=("n2",),
        severity=Severity.BLOCK,
        ranks=(3,),
        seen="rank 3 waits",
        why="w",
        fix="aboard logs",
    )
    assert build_stall(found) == build_stall(found, None, 9.0)
    stall = build_stall(found, (StallAction.RESTART, 60.0), 18.2)
    roster = replace(training(2, 8), stall=stall)
    assert "  then restarted in 42 s, unless it makes progress" in drawn(roster, 80, 24)
    said: list[str] = []
    plain = PlainLaunchWriter(said.append)
    plain.update(roster)
    plain.update(replace(roster, stall=build_stall(found, (StallAction.RESTART, 60.0), 30.0)))
    assert [line for line in said if line.startswith("then")] == ["then restarted in 42 s, unless it makes progress"]
    stopped = build_stall(found, (StallAction.STOP, 60.0), 61.0)
    assert stopped is not None
    assert stopped.ends == "stopped in 0 s"


def test_a_verdict_that_is_too_long_keeps_file_line_and_function() -> None:
    """Beyond three lines, directories go first, then what follows the function, then what precedes it."""
    seen = f"rank 3 on n2 waits {'and waits ' * 40}at /home/ada/src/train.py:42 in step; 7 other ranks wait for it"
    stall = Stall(code="hang-lock", grave=True, nodes=("n2",), seen=seen, fix="aboard logs")
    text = drawn(replace(training(2, 8), stall=stall), 80, 24)
    assert "train.py:42 in step" in text
    assert len(text[text.index("stuck") : text.index("  fix")].splitlines()) <= 3


def test_ranks_that_are_done_are_counted() -> None:
    """While some still train, each node says how many of its ranks have finished."""
    scene = Scene(2, 8)
    scene.held()
    scene.come(1.0, Phase.STARTED)
    scene.samples(5.0, step=7)
    scene.come(9.0, Phase.DONE, range(3))
    assert "finished" in (text := drawn(scene.at(20.0), 80, 24))
    assert "3/8" in text


def test_an_attempt_is_told() -> None:
    """A restart shows, a first attempt doesn't."""
    assert "attempt" not in drawn(training(2, 1), 80, 24)
    assert "attempt 2" in drawn(replace(training(2, 1), generation=2), 80, 24)


def test_a_terminal_without_unicode() -> None:
    """Every sign has one in ASCII."""
    text = drawn(dead(2, 8), 80, 24, encoding="ascii")
    assert "n2    +      +       x      -" in text
    assert "n1    +      +       +      ~" in text


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("10%\r20%\r\n", "20%"),
        ("\x1b[1;32mgreen\x1b[0m \x1b]0;title\x07and\tdone", "green and       done"),
        ("bell \x07 and \x1b", "bell \\x07 and \\x1b"),
    ],
)
def test_a_rank_cannot_spoil_the_picture(line: str, shown: str) -> None:
    """What a terminal would obey is taken out or spelled out."""
    assert clean_line(line) == shown


TEXT = st.text(max_size=200)
NAME = st.from_regex(r"[a-z]{1,40}[0-9]{0,4}", fullmatch=True)
FIGURE = st.none() | st.floats(0, 1e15)


@st.composite
def rows(draw: st.DrawFn) -> NodeRow:
    count = draw(st.integers(1, 9))
    first = draw(st.integers(0, 10**6))
    phases = sorted(set(draw(st.lists(st.sampled_from(Phase), min_size=1, max_size=count))))
    return NodeRow(
        node=draw(NAME),
        ranks=tuple(range(first, first + count)),
        phases=(*((phase, 1) for phase in phases[:-1]), (phases[-1], count - len(phases) + 1)),
        state=draw(st.sampled_from(["waiting", "held", "cut", "gone"])),
        since=0.0,
        step=draw(st.none() | st.integers(0, 10**9)),
        step_seconds=draw(FIGURE),
        load=draw(FIGURE),
        memory=draw(st.none() | st.floats(0, 1)),
        rss=draw(FIGURE),
        cpu=draw(FIGURE),
    )


@st.composite
def rosters(draw: st.DrawFn) -> RunProgress:
    given_rows = draw(st.lists(rows(), min_size=1, max_size=12))
    why = st.sampled_from(
        ["torch imported", "not started yet", "silent: no beat", "gone: refused", "exited with code -9"]
    )
    missing = st.builds(
        MissingRanks,
        node=st.sampled_from([row.node for row in given_rows]),
        ranks=st.just((1, 2)),
        why=why | TEXT,
        seconds=st.floats(0, 1e7),
    )
    return RunProgress(
        run="20261115-0507-brave-otter",
        program=draw(TEXT),
        master="",
        began=0.0,
        now=draw(st.floats(0, 1e8)),
        world=sum(len(row.ranks) for row in given_rows),
        generation=draw(st.integers(0, 12)),
        phase=draw(st.sampled_from(Phase)),
        ranks_in_phase=draw(st.integers(0, 10**6)),
        rows=tuple(given_rows),
        missing=tuple(draw(st.lists(missing, max_size=8))),
        step=draw(st.none() | st.integers(0, 10**12)),
        step_seconds=draw(FIGURE),
        stopping=draw(st.just("") | TEXT),
        finished=draw(st.just("") | TEXT),
        interest=draw(st.none() | st.integers(0, 9)),
        tail=tuple(draw(st.lists(TEXT.map(Untrusted), max_size=9))),
    )


@pytest.mark.ci
@given(rosters(), st.integers(10, 220), st.integers(2, 60))
def test_it_keeps_to_the_terminal(roster: RunProgress, width: int, height: int) -> None:
    """Never more lines than there are less some to spare, never a line that is wider, whatever it is told."""
    lines = drawn(roster, width, height).split("\n")[:-1]
    assert len(lines) <= max(1, height - SPARE)
    assert max(map(cell_len, lines)) <= width
