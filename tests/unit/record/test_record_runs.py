"""Run directories: made, named, found, claimed and pruned."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from made_events import made_event

from aboard.core.cluster.node import Node
from aboard.core.plan.plan import MasterAddress, NodePlan, Plan, Start
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.run.events import Event
from aboard.core.slurm.job_state import JobStatus
from aboard.diagnoses import AboardError, Finding, InputError, Severity
from aboard.engine.records.plan_file import PlanFile
from aboard.engine.records.replay_run import judge_finished_run
from aboard.engine.records.status import summarize_run
from aboard.engine.request.typed_words import format_typed_command
from aboard.record.event_log import read_events
from aboard.record.run_directory import RunDirectory, RunState
from aboard.record.run_record import Record
from aboard.record.runs import Runs, make_run_id

NOW = datetime(2026, 11, 15, 5, 7, tzinfo=UTC)
HOLD = """
import sys
from pathlib import Path
from aboard.record.run_directory import RunDirectory
claim = RunDirectory(Path(sys.argv[1])).claim()
print("claimed", flush=True)
sys.stdin.read()
"""


def _draws(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - names of runs are no secrets


def _made(runs: Runs, *names: str) -> list[RunDirectory]:
    runs.base.mkdir(parents=True, exist_ok=True)
    made = [runs.open_run(name) for name in names]
    for number, run in enumerate(made):
        run.make()
        os.utime(run.path / "began", (number, number))
    return made


def _state(run: RunDirectory) -> RunState:
    """As it is now, which mypy can't know to be another than before."""
    return run.state


def test_ids_are_short_and_sort_by_time() -> None:
    """A person can type one, and `ls` shows them in order."""
    name = make_run_id(NOW, _draws(1))
    assert re.fullmatch(r"20261115-0507-[a-z]+-[a-z]+", name)
    assert len({make_run_id(NOW, _draws(seed)) for seed in range(100)}) > 95


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
    with pytest.raises(InputError, match="matches 2 runs"):
        runs.find("20261115")
    with pytest.raises(InputError) as caught:
        runs.find("20261115-0507-brav-oter")
    assert caught.value.fix == "did you mean '20261115-0507-brave-otter'?"


def test_an_unknown_name_lists_a_few_runs(tmp_path: Path) -> None:
    """The newest ones; a screen of a hundred names would hide what was wrong."""
    runs = Runs(tmp_path)
    _made(runs, *(f"20261114-01{minute:02}-calm-owl" for minute in range(30)))
    with pytest.raises(InputError) as caught:
        runs.find("output", "run, and no directory")
    assert caught.value.problems[0].seen == "there is no run, and no directory 'output'"
    assert [f"20261114-01{minute:02}-calm-owl" in caught.value.fix for minute in (29, 25, 24, 0)] == [
        True,
        True,
        False,
        False,
    ]


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
        with pytest.raises(AboardError, match="already has a conductor"):
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
    record.write_findings([])
    record.event(made_event("ended", node="n1", seq=1, at=1.0))
    record.samples("n1", 1.0, {"node": {"load": 0.5}})
    record.add_output("n1", 0, "stdout", b"hello\n", 1.0)
    assert record.dropped == {}
    record.add_output("n1", 1, "stdout", b"rest\n", 1.0, dropped=9, end=True)
    record.tick(0.0)
    record.flush()
    assert [line.visible() for line in record.tail(0)] == ["hello"]
    assert record.dropped == {"log bytes lost on nodes": 9}
    record.close()
    assert [event.kind for event in read_events(run.events)] == ["ended"]
    assert sorted(path.name for path in run.path.iterdir()) == [
        "began", "events.jsonl", "findings.json", "logs", "plan.json", "samples.jsonl",
    ]  # fmt: skip
    for path in [*run.path.iterdir(), *run.logs.iterdir()]:
        assert path.stat().st_mode & 0o077 == 0


class Lost:
    """Writes what such a conductor had recorded until it was killed, at 100 s."""

    def __init__(self, run: RunDirectory) -> None:
        self.run = run

    def write(self, *events: Event, metrics: Mapping[str, float] | None = None, **plan: Any) -> None:
        starts = [[{"child": str(rank), "rank": rank} for rank in ranks] for ranks in ((0, 1), (2, 3))]
        nodes = [{"name": f"n{number}", "starts": each} for number, each in enumerate(starts, 1)]
        record = Record.open(self.run, ranks=4)
        record.write_plan({"world": 4, "nodes": nodes, "cwd": "/home/ada/my job", "lease": 20.0, **plan})
        record.event(made_event("generation", node="", at=90.0, number=1))
        for rank in range(4):
            record.event(made_event("started", node=f"n{1 + rank // 2}", seq=1, at=91.0, child=str(rank), rank=rank))
        for event in events:
            record.event(event)
        child = {"step": 70, **({"metrics": metrics} if metrics else {})}
        record.samples("n1", 100.0, {"node": {}, "children": {"0": child}})
        record.close()

    def finding(self) -> Finding:
        """What `aboard status` says of it; `aboard why` says it first, too."""
        (told,) = summarize_run(self.run).findings
        again = judge_finished_run(self.run).why.findings[0]
        assert (told.code, told.nodes, told.fix) == (again.code, again.nodes, again.fix)
        return told


@pytest.fixture
def lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lost:
    """The record of a conductor that was killed while four ranks ran on two nodes."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run = Runs.of({"XDG_STATE_HOME": str(tmp_path)}).create(NOW, _draws(1))
    # The file stays, and nobody holds its lock any more.
    run.pid.write_text("4711\n")
    return Lost(run)


def test_a_conductor_that_was_killed_is_named(lost: Lost) -> None:
    """Which process and when, how many ranks its nodes terminated and where, and the command to run it again."""
    lost.write(command="aboard launch -d -- train.py")
    finding = lost.finding()
    assert (finding.severity, finding.nodes, finding.ranks) == (Severity.BLOCK, ("n1", "n2"), (0, 1, 2, 3))
    assert finding.seen.startswith("the conductor (process 4711) died without ending the run; its last record is ")
    assert finding.seen.endswith(
        " old (1970-01-01 00:01:40 UTC), at step 70. 4 ranks were running on n[1-2], and the agents there have"
        " terminated them, because the lease of 20 s has expired"
    )
    assert finding.fix.splitlines()[0] == "cd '/home/ada/my job' && aboard launch -d -- train.py    # runs it again"


@pytest.mark.parametrize(
    ("resume", "saved", "words", "command"),
    [
        ("auto", 60.0, "the last checkpoint is from step 60", "aboard train n[1-2]    # continues from step 60"),
        ("none", 60.0, "step 60", "aboard train n[1-2] --set train.resume=auto    # continues from step 60"),
        (
            "auto",
            None,
            "no checkpoint was recorded",
            "aboard train n[1-2]    # continues from the last checkpoint, if any",
        ),
    ],
)
def test_a_training_whose_conductor_was_killed_names_its_last_checkpoint(
    lost: Lost, resume: str, saved: float | None, words: str, command: str
) -> None:
    """The command that was typed continues from there, also where it was told not to resume."""
    training = json.dumps({"output_dir": str(lost.run.path / "nothing"), "resume": resume})
    metrics = {"step": 70.0, **({"saved": saved} if saved is not None else {})}
    lost.write(env={"ABOARD_TRAINING": training}, command="aboard train n[1-2]", metrics=metrics)
    finding = lost.finding()
    assert words in finding.seen
    assert finding.fix.splitlines()[0] == f"cd '/home/ada/my job' && {command}"


def test_a_checkpoint_on_this_machine_is_newer_than_the_record(lost: Lost) -> None:
    """Metrics are recorded every few seconds; a complete checkpoint counts as soon as it is there."""
    (lost.run.path / "out" / "step-000065").mkdir(parents=True)
    (lost.run.path / "out" / "step-000065" / "manifest.json").touch()
    training = json.dumps({"output_dir": str(lost.run.path / "out"), "resume": "auto"})
    lost.write(env={"ABOARD_TRAINING": training}, command="aboard train", metrics={"step": 70.0, "saved": 60.0})
    assert "the last checkpoint is from step 65" in lost.finding().seen


def test_a_rank_that_died_before_its_conductor_was_killed_comes_first(lost: Lost) -> None:
    """The conductor was already ending the run: the death is the verdict, and both are told."""
    died = made_event("exited", node="n2", seq=2, at=99.0, child="3", rank=3, code=3)
    deciding = made_event("deciding", node="", at=99.1, why="rank 3 died", death=True)
    lost.write(died, deciding, command="aboard launch -- train.py")
    death, conductor = judge_finished_run(lost.run).why.findings
    assert (death.code, death.ranks) == ("run-exited", (3,))
    assert (conductor.code, conductor.severity) == ("run-conductor-lost", Severity.WARN)
    assert "3 ranks were running on n[1-2]" in conductor.seen


def test_a_conductor_that_was_killed_before_ranks_started(lost: Lost) -> None:
    """Nothing was planned yet: that is all there is to say."""
    assert summarize_run(lost.run).findings[0].seen == "the conductor (process 4711) died before any rank was started"
    assert judge_finished_run(lost.run).why.findings[0].code == "run-conductor-lost"


def test_a_conductor_that_slurm_killed_has_slurms_reason(lost: Lost) -> None:
    """How the job ended comes before the conductor that was lost with it."""
    lost.write(command="aboard launch -- train.py")
    job = JobStatus(id=12, state="NODE_FAIL", nodes="n[1-2]")
    first, second = judge_finished_run(lost.run, job).why.findings
    assert (first.code, second.code) == ("run-node-gone", "run-conductor-lost")
    assert "job 12 lost a node" in first.seen


def test_the_recorded_command_holds_no_secret(tmp_path: Path) -> None:
    """A value of --env that is secret is left out, so that it is taken from the environment."""
    command = format_typed_command(["launch", "--env", "HF_TOKEN=hf_AbCdEfGh", "--", "a b.py"])
    env = {"HF_TOKEN": "hf_AbCdEfGh"}
    start = Start(child="0", argv=("python3",), env=env, secrets=("HF_TOKEN",), rank=0)
    plan = Plan(
        run="r",
        program=Program(kind=ProgramKind.SCRIPT, target="a b.py"),
        master=MasterAddress(node="n1", address="n1"),
        parts=(NodePlan(node=Node(name="n1"), starts=(start,)),),
    )
    run = Runs(tmp_path).create(datetime.now(UTC), Random(0))  # noqa: S311 - a name, no secret
    with closing(Record.open(run, ranks=1)) as record:
        PlanFile(record=record, command=command, cwd="/work", lease=20.0).write(plan)
    document = json.loads(run.plan.read_text("utf-8"))
    assert (document["command"], document["cwd"]) == ("aboard launch --env HF_TOKEN -- 'a b.py'", "/work")
