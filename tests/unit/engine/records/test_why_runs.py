"""`aboard why` without a name: which run it means, and what it says of a launch that was refused."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import get_args

import pytest
from click.testing import CliRunner
from made_events import made_event
from typed_commands import aboard

from aboard.commands.command_line import cli
from aboard.diagnoses import NO_FIX
from aboard.diagnoses.nodes import reach
from aboard.diagnoses.runs import death
from aboard.engine.launch_run import LaunchResult
from aboard.engine.records.replay_run import find_default_run
from aboard.engine.records.status import SummaryState
from aboard.record.json_documents import build_findings_document, read_document
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record
from aboard.record.runs import Runs

ROOT = Path(__file__).parents[4]
DRAWN = Random(3)  # noqa: S311 - draws names, no secret


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return Runs.of({"XDG_STATE_HOME": str(tmp_path)})


def begin(runs: Runs, at: int) -> RunDirectory:
    run = runs.create(datetime.fromtimestamp(60 * at, tz=UTC), DRAWN)
    os.utime(run.path / "began", (60 * at, 60 * at))
    return run


def end(run: RunDirectory, at: int, code: int) -> RunDirectory:
    record = Record.open(run, ranks=1)
    record.event(made_event("generation", node="", at=60.0 * at, number=1))
    record.event(made_event("finished", node="", at=60.0 * at, why="rank 0 exited", code=code))
    record.close()
    os.utime(run.events, (60 * at, 60 * at))
    return run


@contextmanager
def living(run: RunDirectory) -> Iterator[RunDirectory]:
    claim = run.claim()
    yield run
    claim.release()


def ask(runs: Runs, at: int) -> None:
    runs.note_question()
    os.utime(runs.base / ".asked", (60 * at, 60 * at))


def test_the_run_that_just_failed_is_meant_although_another_one_is_active(runs: Runs) -> None:
    with living(begin(runs, 1)) as active:
        failed = end(begin(runs, 2), 3, 1)
        assert find_default_run(runs).id == failed.id
        ask(runs, 4)
        assert find_default_run(runs).id == active.id


def test_a_run_that_began_after_the_failure_is_meant(runs: Runs) -> None:
    end(begin(runs, 1), 2, 1)
    with living(begin(runs, 3)) as active:
        assert find_default_run(runs).id == active.id


def test_a_failure_comes_before_a_newer_run_that_went_well(runs: Runs) -> None:
    failed = end(begin(runs, 1), 2, 1)
    well = end(begin(runs, 3), 4, 0)
    assert find_default_run(runs).id == failed.id
    ask(runs, 5)
    assert find_default_run(runs).id == well.id


def test_the_first_line_names_the_run_and_the_last_one_the_active_run(runs: Runs) -> None:
    with living(begin(runs, 1)) as active:
        failed = end(begin(runs, 2), 3, 1)
        lines = CliRunner().invoke(cli, ["why"]).output.splitlines()
    assert lines[0].startswith(f"{failed.id} failed ")
    assert lines[-1] == f"aboard why {active.id}    # the run that is active"
    assert runs.last_question > 0


def test_a_launch_that_preflight_refused_is_told_with_its_codes(runs: Runs) -> None:
    """By `aboard why` and by `aboard status`, in place of a run without anything wrong."""
    run = begin(runs, 1)
    diagnosis = reach.REFUSED
    found = diagnosis.finding(nodes=("n2",), seen="n2 refuses connections on port 22", fix=NO_FIX)
    record = Record.open(run, ranks=1)
    record.write_findings(LaunchResult(report=None, refused=(found,)).blockers, generation=3)
    record.close()
    assert [each["generation"] for each in read_document(run.findings)] == [3]
    refused = f"refused by preflight: {diagnosis.code}"
    said = CliRunner().invoke(cli, ["why"]).output
    assert said.startswith(f"{run.id} was refused")
    assert refused in said.splitlines()[0]
    assert "n2 refuses connections on port 22" in said
    fields = CliRunner().invoke(cli, ["status"]).output.splitlines()[1].split("\t")
    assert (fields[1], fields[-1]) == ("refused", refused)


def test_a_launch_whose_command_was_refused_says_so(runs: Runs) -> None:
    """Not just "blocked", of which nobody knows by what."""
    run = begin(runs, 1)
    assert "its command was refused before ranks started" in CliRunner().invoke(cli, ["status", run.id]).output
    assert "its command was refused before ranks started" in CliRunner().invoke(cli, ["why", run.id]).output


def test_a_launch_that_was_interrupted_in_the_preflight_was_not_refused(runs: Runs) -> None:
    """Ctrl-C is the user's own word; nobody refused the command."""
    run = begin(runs, 1)
    record = Record.open(run, ranks=1)
    why = "aboard received SIGINT before ranks started"
    record.event(made_event("stopping", node="", at=61.0, why=why))
    record.close()
    for command in ("status", "why"):
        said = aboard(command, run.id).stdout
        assert ("interrupted" in said, why in said, "refused" in said) == (True, True, False)


def test_the_statuses_are_those_of_the_docs() -> None:
    """One table for users, one type in the code: the same words in the same order."""
    section = (ROOT / "docs/scripting.md").read_text().partition("## Statuses")[2].partition("\n## ")[0]
    words = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")]
    assert words[1:] == list(get_args(SummaryState))


def test_a_run_that_succeeded_has_no_verdict_from_what_it_printed(runs: Runs) -> None:
    """An exception in a finalizer or at exit changes no exit code: `why` never contradicts `status`."""
    printed = (
        b"Exception ignored in: <function Cache.__del__ at 0x7f>\nTraceback (most recent call last):\n"
        b"  File \"/job/train.py\", line 7, in __del__\n    self.file.close()\nAttributeError: no attribute 'file'\n"
    )
    for at, code in ((1, 0), (3, 1)):
        run = begin(runs, at)
        record = Record.open(run, ranks=1)
        record.event(made_event("generation", node="", at=60.0 * at, number=1))
        record.add_output("n1", 0, "stderr", printed, 60.0 * at + 1, end=True)
        record.event(made_event("finished", node="", at=60.0 * at + 2, why="", code=code))
        record.close()
        said = aboard("why", run.id).stdout
        state = "failed" if code else "finished"
        assert said.startswith(f"{run.id} {state} ")
        assert ("run-raised" in said) == bool(code)
        assert ("; nothing wrong was found" in said) == (not code)
        # The page of the code is another command's: its placeholders and its advice for others looked like a verdict.
        assert said.endswith("aboard why run-raised    # explains this code\n") == bool(code)
        assert "aboard why RUN" not in said


def test_a_verdict_that_a_recovery_closed_is_not_the_verdict(runs: Runs) -> None:
    """What stood when an attempt ended says nothing about the attempt after it."""
    silent = death.NODE_SILENT.finding(nodes=("n2",), seen="n2 has been silent for 6 s")
    run = begin(runs, 1)
    record = Record.open(run, ranks=1)
    steps: list[tuple[str, dict[str, object]]] = [
        ("generation", {"number": 1}),
        ("verdict", {"findings": build_findings_document([silent])}),
        ("generation", {"number": 2}),
        ("stopping", {"why": "aboard stop"}),
        ("deciding", {"was_stopped": True}),
        ("finished", {"why": "stopped", "code": 130}),
    ]
    starts = [{"child": "0", "rank": 0, "argv": ["python"]}]
    record.write_plan({"world": 1, "nodes": [{"name": "n1", "starts": starts}], "cwd": "/", "command": "aboard launch"})
    for at, (kind, data) in enumerate(steps, 60):
        record.event(made_event(kind, node="", at=float(at), **data))
    record.close()
    assert "; nothing wrong was found" in aboard("why", run.id).stdout


@pytest.mark.parametrize(("saved", "what"), [(40, "continues from step 40"), (None, "starts over: no checkpoint")])
def test_of_a_training_that_failed_the_command_that_resumes_it_is_told(
    runs: Runs, tmp_path: Path, saved: int | None, what: str
) -> None:
    """From any directory: the folder of the training comes first."""
    run = begin(runs, 1)
    record = Record.open(run, ranks=1)
    training = json.dumps({"output_dir": str(tmp_path / "output"), "resume": "auto"})
    starts = [{"child": "0", "rank": 0, "argv": ["python"]}]
    record.write_plan(
        {
            "world": 1,
            "nodes": [{"name": "n1", "starts": starts}],
            "cwd": "/home/ada/my job",
            "command": "aboard train n1",
            "env": {"ABOARD_TRAINING": training},
        }
    )
    record.event(made_event("generation", node="", at=60.0, number=1))
    record.event(made_event("started", node="n1", seq=1, at=61.0, child="0", rank=0))
    metrics = {"step": 70, **({"saved": saved} if saved else {})}
    record.samples("n1", 70.0, {"node": {}, "children": {"0": {"step": 70, "metrics": metrics}}})
    record.event(made_event("exited", node="n1", seq=2, at=80.0, child="0", rank=0, code=-9))
    record.event(made_event("finished", node="", at=81.0, why="rank 0 died", code=137))
    record.close()
    said = CliRunner().invoke(cli, ["why"]).output
    assert "run-killed" in said
    assert "cd '/home/ada/my job' && aboard train n1" in said
    assert what in said
