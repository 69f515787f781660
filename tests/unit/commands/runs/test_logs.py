"""`aboard logs`: the last lines, since a time, followed to the end of the run, on a terminal and raw."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deadlines import slowness
from recording_logs import ALL
from typed_commands import aboard

from aboard.commands.shared.log_lines import LogLineFormatter
from aboard.core.text.fold_lines import FoldedLine, OutputLine
from aboard.diagnoses import InputError
from aboard.engine.records.read_logs import LogQuery, read_logs
from aboard.record.rank_logs.merged_logs import LineSelection
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record
from aboard.record.runs import Runs

NAME = "20261115-0507-brave-otter"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    runs = Runs(tmp_path / "aboard" / "runs")
    runs.base.mkdir(parents=True)
    run = runs.open_run(NAME)
    run.make()
    return run


def _told(
    run: RunDirectory, wanted: LogQuery, now: float = 0.0, wait: Callable[[float], None] | None = None
) -> list[str]:
    """Each line as `ranks:text`."""
    told = read_logs(run, wanted, now=now, wait=wait or (lambda _seconds: None))
    return [f"{','.join(map(str, sorted(each.ranks)))}:{each.line.text.decode()}" for each in told]


def _steps(run: RunDirectory, steps: int) -> Record:
    """Two ranks that say the same, ten seconds apart."""
    record = Record.open(run, ranks=2)
    for step in range(steps):
        for rank in (0, 1):
            record.add_output("n1", rank, "stdout", f"step {'abcdefghij'[step]}\n".encode(), step * 10.0 + rank / 10)
    record.flush()
    return record


def test_the_last_lines_are_folded_lines(run: RunDirectory) -> None:
    """Counted as they are shown; and the whole log is the same lines, read forward."""
    _steps(run, 10).close()
    assert _told(run, LogQuery(selection=ALL, last=3)) == ["0,1:step h", "0,1:step i", "0,1:step j"]
    assert _told(run, LogQuery(selection=ALL)) == _told(run, LogQuery(selection=ALL, last=99))
    assert len(_told(run, LogQuery(selection=ALL, last=99, folded=False))) == 20
    assert _told(run, LogQuery(selection=ALL, last=99, most=5)) == ["1:step h", "0,1:step i", "0,1:step j"]


def test_a_script_without_ranks_is_pointed_to(run: RunDirectory) -> None:
    """A script that called no launcher has printed something that only `--script` shows: nothing was said of it."""
    record = Record.open(run, ranks=0)
    said: list[str] = []
    assert not list(read_logs(run, LogQuery(selection=ALL, last=9), now=0.0, note=said.append))
    assert not said
    record.add_script_output("n1", 0, "stdout", b"hello\n", 1.0)
    record.flush()
    assert not list(read_logs(run, LogQuery(selection=ALL, last=9), now=0.0, note=said.append))
    assert said == [f"no rank has printed anything, but a script has: aboard logs {NAME} --script"]
    assert _told(run, LogQuery(selection=ALL, of_script=True))
    assert len(said) == 1


def test_since_counts_from_now_or_from_the_end_of_the_run(run: RunDirectory) -> None:
    """A run that is over has last minutes too."""
    record = _steps(run, 10)
    claim = run.claim()
    assert _told(run, LogQuery(selection=ALL, back=15.0), now=95.0) == ["0,1:step i", "0,1:step j"]
    assert _told(run, LogQuery(selection=ALL, back=15.0, last=1), now=95.0) == ["0,1:step j"]
    assert _told(run, LogQuery(selection=ALL, back=15.0), now=1000.0) == []
    record.close()
    claim.release()
    assert _told(run, LogQuery(selection=ALL, back=15.0), now=1000.0) == ["0,1:step i", "0,1:step j"]


def test_following_ends_with_the_run_and_misses_nothing(run: RunDirectory) -> None:
    """What is written meanwhile, by new ranks too, and what is written last."""
    record = _steps(run, 2)
    claim = run.claim()
    waits: list[float] = []

    def go_on(seconds: float) -> None:
        waits.append(seconds)
        record.add_output("n1", len(waits), "stdout", b"more %d\n" % len(waits), 100.0 * len(waits))
        if len(waits) == 3:
            record.close()
            claim.release()
        else:
            record.flush()

    said = _told(run, LogQuery(selection=ALL, last=1, follow=True), wait=go_on)
    assert said == ["0,1:step b", "1:more 1", "2:more 2", "3:more 3"]


def test_following_through_a_segment_that_is_gone(run: RunDirectory) -> None:
    """A flood that outran the reader is said to have been missed, once."""
    record = Record.open(run, ranks=200_000)
    claim = run.claim()
    record.add_output("n1", 0, "stdout", b"begin\n", 0.0)
    record.flush()
    line = b"x" * 999 + b"\n"

    def flood(_seconds: float) -> None:
        for _ in range(400):
            record.add_output("n1", 0, "stdout", line, 1.0)
        record.close()
        claim.release()
        for path in sorted(run.logs.glob("00000-*"))[2:4]:
            path.unlink()

    told = list(read_logs(run, LogQuery(selection=ALL, follow=True, folded=False), now=0.0, wait=flood))
    assert [each.line.text for each in told[:2]] == [b"begin", line[:-1]]
    (missing,) = (each.line.missing for each in told if each.line.missing)
    assert missing + sum(len(each.line.text) + 1 for each in told if not each.line.missing) == 6 + 400 * 1000


def test_nobody_of_that_name_printed_anything(run: RunDirectory) -> None:
    """A rank or a node that isn't there is a typing mistake, with the known ones beside it."""
    _steps(run, 1).close()
    wanted = LogQuery(selection=LineSelection(ranks=frozenset({7}), nodes=frozenset({"n11"})))
    with pytest.raises(InputError) as caught:
        _told(run, wanted)
    assert "0-1" in caught.value.problems[0].fix
    assert caught.value.problems[1].fix == "did you mean 'n1'?"


def _text(text: bytes, **more: object) -> list[str]:
    line = OutputLine(1e9, 3, "n1", "stdout", text)._replace(**more)  # type: ignore[arg-type]  # any field of it
    return [shown.partition(" ")[2] for shown in LogLineFormatter(styled=False).text(FoldedLine(line=line, ranks=[3]))]


def test_what_a_terminal_would_obey_is_made_visible() -> None:
    """Escapes and binary bytes are spelled out; colours, which say nothing, are left out."""
    assert _text(b"\x1b[32mgreen\x1b[0m\ttab") == ["[rank 3] green   tab"]
    assert _text(b"\x1b]0;title\x07\x00\xff\xc3\xa4\xe2\x80\xae") == ["[rank 3] \\x1b]0;title\\x07\\x00�ä\\u202e"]


def test_a_progress_bar_is_its_last_state_and_nothing_else_is_hidden() -> None:
    """What was drawn over with other words is shown too."""
    bar = b"\r 10%|#   | 1/10 [00:01<00:09, 1.0it/s]\r 20%|##  | 2/10 [00:02<00:08, 1.0it/s]"
    assert _text(bar) == ["[rank 3]  20%|##  | 2/10 [00:02<00:08, 1.0it/s]"]
    assert _text(b"ERROR: no\rdone\r") == ["[rank 3] ERROR: no", "[rank 3] … done"]
    assert _text(b"windows\r") == ["[rank 3] windows"]


def test_rests_and_gaps_are_marked() -> None:
    """A rest has dots before it; its empty end is no line; a gap says how much and why."""
    assert _text(b"rest", continues=True) == ["[rank 3] … rest"]
    assert _text(b"", continues=True) == []
    assert _text(b"") == ["[rank 3] "]
    assert _text(b"", missing=12_345_678, why="here") == ["[rank 3] … 12 MiB are missing: dropped here"]


def test_who_said_it() -> None:
    """Ranks as a short set with their count, and whether they differ."""
    line = OutputLine(1e9, 0, "n1", "stderr", b"hi")
    told = FoldedLine(line=line, ranks=[*range(8), 9], alike=True)
    (shown,) = LogLineFormatter(styled=False).text(told)
    assert re.fullmatch(r"2001-09-0\dT\d\d:46:40\.000 \[ranks 0-7,9 ×9 ≈ stderr\] hi", shown)
    (styled,) = LogLineFormatter(styled=True).text(told)
    assert "\x1b[" in styled
    assert "2001" not in styled
    assert next(LogLineFormatter(styled=False).text(FoldedLine(line=line._replace(at=1e15), ranks=[0]))).startswith(
        "unknown-time"
    )


@pytest.fixture
def utc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands look for runs here, and tell times as they are in Greenwich."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_as_a_person_types_it(run: RunDirectory, utc: None) -> None:
    """The latest run, by name, by rank, raw to the byte."""
    record = _steps(run, 2)
    record.add_output("n1", 1, "stderr", b"raw \x00\x1b[1m\xff", 99.0, end=True)
    record.close()
    assert aboard("logs").stdout.splitlines() == [
        "1970-01-01T00:00:00.000 [ranks 0-1 ×2] step a",
        "1970-01-01T00:00:10.000 [ranks 0-1 ×2] step b",
        "1970-01-01T00:01:39.000 [rank 1 stderr] raw \\x00�",
    ]
    assert aboard("logs", "brave", "--rank", "1", "--raw").out == b"step a\nstep b\nraw \x00\x1b[1m\xff"
    assert aboard("logs", "--stream", "stdout", "--node", "n1", "-n", "1", "--no-fold").out.count(b"\n") == 1
    assert aboard("logs", "--grep", "step [a]", "--follow", "-n", "all").out.count(b"\n") == 1


def test_lines_that_are_left_out_are_noted(run: RunDirectory, utc: None) -> None:
    """On stderr, with their number and what shows them; a pipe gets the lines alone. Who typed -n knows."""
    record = Record.open(run, ranks=2)
    for rank in (0, 1):
        lines = "".join(f"rank {rank} line {chr(97 + number % 26)} {number}\n" for number in range(600))
        record.add_output("n1", rank, "stdout", lines.encode(), 1.0 + rank)
    record.close()
    ran = aboard("logs", "--rank", "1")
    assert (ran.out.count(b"\n"), ran.stderr) == (200, "last 200 of 600 lines; -n all for the rest\n")
    assert aboard("logs", "--no-fold").stderr == "last 200 of 1,200 lines; -n all for the rest\n"
    assert aboard("logs", "--grep", "line").stderr == "last 200 matching lines; -n all for the rest\n"
    for words in (("-n", "all"), ("-n", "3"), ("--grep", "line b"), ("--raw",)):
        assert aboard("logs", "--rank", "1", *words).stderr == "", words


def test_mistakes_are_answered(run: RunDirectory, utc: None) -> None:
    """With a code and what to type, before anything is read."""
    _steps(run, 1).close()
    for argv, code in {
        ("--grep", "("): "logs-grep",
        ("--rank", "x"): "ranks",
        ("--since", "10"): "duration",
        ("-n", "0"): "logs-lines",
        ("--rank", "5"): "logs-nothing",
        ("brav-otter",): "run-name",
    }.items():
        ran = aboard("logs", *argv)
        assert ran.code == 3, argv
        assert f"[{code}]" in ran.stderr, argv
        assert "Traceback" not in ran.stderr


def test_a_reader_that_has_seen_enough(run: RunDirectory, tmp_path: Path) -> None:
    """`aboard logs | head -1` ends without a complaint."""
    record = Record.open(run, ranks=1)
    for _ in range(200):
        record.add_output("n1", 0, "stdout", b"line\n" * 2000, 1.0)
    record.close()
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    argv = [sys.executable, "-m", "aboard", "logs", "-n", "all", "--no-fold"]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30 * slowness()) == 0
