"""Run directories: made, named, found, claimed and pruned."""

import os
import random
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from aboard.core.errors import AboardError, InputError
from aboard.core.event import Event
from aboard.record import Record, RunDirectory, Runs
from aboard.record.events import replay
from aboard.record.names import new_run_id
from aboard.record.places import RunState

NOW = datetime(2026, 11, 15, 5, 7, tzinfo=UTC)
HOLD = """
import sys
from pathlib import Path
from aboard.record import RunDirectory
claim = RunDirectory(Path(sys.argv[1])).claim()
print("claimed", flush=True)
sys.stdin.read()
"""


def _draws(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - names of runs are no secrets


def _made(runs: Runs, *names: str) -> list[RunDirectory]:
    runs.base.mkdir(parents=True, exist_ok=True)
    made = [runs.named(name) for name in names]
    for number, run in enumerate(made):
        run.make()
        os.utime(run.path / "began", (number, number))
    return made


def _state(run: RunDirectory) -> RunState:
    """As it is now, which mypy can't know to be another than before."""
    return run.state


def test_ids_are_short_and_sort_by_time() -> None:
    """A person can type one, and `ls` shows them in order."""
    name = new_run_id(NOW, _draws(1))
    assert re.fullmatch(r"20261115-0507-[a-z]+-[a-z]+", name)
    assert len({new_run_id(NOW, _draws(seed)) for seed in range(100)}) > 95


def test_where_runs_are() -> None:
    """As the XDG specification says, which wants a relative path ignored."""
    assert Runs.of({"HOME": "/home/ada"}).base == Path("/home/ada/.local/state/aboard/runs")
    assert Runs.of({"HOME": "/home/ada", "XDG_STATE_HOME": "/big"}).base == Path("/big/aboard/runs")
    assert Runs.of({"HOME": "/home/ada", "XDG_STATE_HOME": "big"}).base == Path("/home/ada/.local/state/aboard/runs")


def test_a_run_directory_is_private_and_new(tmp_path: Path) -> None:
    """Nobody else reads it, and no two runs share one even if their names are drawn alike."""
    runs = Runs(tmp_path / "runs")
    draw = _draws(7)
    again = _draws(7)
    first, second = runs.create(NOW, draw), runs.create(NOW, again)
    assert first.id != second.id
    for path in (runs.base, first.path, first.logs):
        assert path.stat().st_mode & 0o777 == 0o700


def test_no_place_for_runs(tmp_path: Path) -> None:
    """What was seen and what to type, not a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(AboardError) as caught:
        Runs(tmp_path / "file" / "runs").create(NOW, _draws(1))
    assert caught.value.code == "run-directory"


def test_runs_are_found_by_a_beginning_or_by_their_words(tmp_path: Path) -> None:
    """The latest without a name; of one minute, the one that was made later."""
    runs = Runs(tmp_path)
    with pytest.raises(AboardError, match="no run yet"):
        runs.latest()
    older, first, second = _made(runs, "20261114-0100-calm-owl", "20261115-0507-sure-wren", "20261115-0507-brave-otter")
    assert runs.find(None) == second
    assert runs.all() == [second, first, older]
    assert runs.find("20261114") == older
    assert runs.find("sure") == first
    assert runs.find("20261115-0507-brave-otter") == second
    with pytest.raises(InputError, match="fits 2 runs"):
        runs.find("20261115")
    with pytest.raises(InputError) as caught:
        runs.find("20261115-0507-brav-oter")
    assert caught.value.fix == "did you mean '20261115-0507-brave-otter'?"


def test_a_run_is_live_while_its_conductor_is(tmp_path: Path) -> None:
    """Seen by the lock, which the kernel frees: a killed conductor is lost, one that released has ended."""
    (run,) = _made(Runs(tmp_path), "20261115-0507-brave-otter")
    assert _state(run) is RunState.ENDED
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"claimed\n"
        assert _state(run) is RunState.RUNNING
        assert int(run.pid.read_text()) == holder.pid
        with pytest.raises(AboardError, match="has a conductor already"):
            run.claim()
        holder.send_signal(signal.SIGKILL)
    assert _state(run) is RunState.LOST
    claim = run.claim()
    assert run.live
    claim.release()
    assert _state(run) is RunState.ENDED


def test_old_runs_are_pruned_but_never_a_live_one_or_the_newest(tmp_path: Path) -> None:
    """By number and by size, the oldest first."""
    runs = Runs(tmp_path)
    made = _made(runs, *(f"2026111{day}-0000-calm-owl" for day in range(6)))
    for run in made:
        run.conductor_log.write_bytes(b"x" * 1000)
    claim = made[0].claim()
    assert runs.prune(runs=4) == [made[1].id]
    assert [run.id for run in runs.all()] == [made[5].id, made[4].id, made[3].id, made[2].id, made[0].id]
    assert runs.prune(size=1) == [made[4].id, made[3].id, made[2].id]
    assert [run.id for run in runs.all()] == [made[5].id, made[0].id]
    claim.release()
    assert runs.prune(size=1) == [made[0].id]
    assert [path.name for path in tmp_path.iterdir()] == [made[5].id]


def test_a_record_holds_all_that_a_run_told(tmp_path: Path) -> None:
    """One object for the conductor; what was lost is told by kind."""
    (run,) = _made(Runs(tmp_path), "20261115-0507-brave-otter")
    record = Record.open(run, ranks=2)
    record.write_plan({"run": run.id})
    record.write_check({"seconds": 1.0})
    record.write_findings([])
    record.event(Event(node="n1", seq=1, at=1.0, kind="ended"))
    record.samples("n1", 1.0, {"node": {"load": 0.5}})
    record.piece("n1", 0, "stdout", b"hello\n", 1.0)
    assert record.dropped == {}
    record.piece("n1", 1, "stdout", b"rest\n", 1.0, dropped=9, end=True)
    record.tick(0.0)
    record.flush()
    assert record.tail(0) == ("hello",)
    assert record.dropped == {"log bytes lost on nodes": 9}
    record.close()
    assert [event.kind for event in replay(run.events)] == ["ended"]
    assert sorted(path.name for path in run.path.iterdir()) == [
        "began", "check.json", "events.jsonl", "findings.json", "logs", "plan.json", "samples.jsonl",
    ]  # fmt: skip
    for path in [*run.path.iterdir(), *run.logs.iterdir()]:
        assert path.stat().st_mode & 0o077 == 0
