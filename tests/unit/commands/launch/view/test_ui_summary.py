"""The end of a run, and the list of runs: generated text, compared whole."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_findings import made_finding
from rich.cells import cell_len
from rich.console import Console, RenderableType
from run_states import RUN, dead, training

from aboard.commands.launch.view.finished_run import FinishedRun, FinishedRunView, format_summary_lines
from aboard.commands.runs.run_list import RunListView, format_run_lines
from aboard.core.run.training_metrics import TrainingStatus
from aboard.diagnoses import Severity
from aboard.doctor.hang import diagnoses as hang
from aboard.engine.records.status import RunSummary

GOLDEN = Path(__file__).parents[3] / "golden" / "ui"
FOLLOWED = made_finding(
    code="crash-ended",
    severity=Severity.INFO,
    nodes=("n01",),
    seen="15 ranks were ended after it",
    why="-",
    fix="-",
)
VERDICT = made_finding(
    code="crash-raised",
    severity=Severity.BLOCK,
    nodes=("n09",),
    ranks=(8,),
    seen="rank 8 on n09 raised ModuleNotFoundError: No module named 'flash_attn'",
    why="The environment of n09 lacks a package that the others have.",
    fix="python3 -m pip install flash_attn    # on n09",
    consequences=(FOLLOWED,),
)
WELL = FinishedRun(
    progress=training(16, 1),
    findings=(),
    exit_code=0,
    directory=f"/home/crew/runs/{RUN}",
    command="aboard launch 'n[01-16]' -- train.py --lr 2e-5",
)
ENDS = {
    "finished": WELL,
    "failed": replace(
        WELL,
        progress=dead(16, 1),
        findings=(VERDICT,),
        exit_code=1,
        dropped={"rank 3": 10**9, "rank 4": 0, **{f"rank {rank}": rank for rank in range(10, 16)}},
    ),
    "stopped": replace(WELL, exit_code=130, progress=replace(WELL.progress, stopping="you pressed Ctrl-C")),
}
NOW = 1e9


def test_next_commands_work_where_only_a_node_has_the_record() -> None:
    """Without shared homes, the login node reads it through srun; what starts a run again is typed there."""
    ended = replace(ENDS["failed"], reader="srun --nodelist=n1 python -m aboard")
    following = [line for line in format_summary_lines(ended) if line.startswith("next ")]
    assert len(following) == 3
    assert all(line.startswith("next srun --nodelist=n1 python -m aboard ") for line in following)


def test_a_run_that_a_further_job_continues_is_not_to_be_launched_again() -> None:
    """Its next command follows that job; if no job continues it, the command that runs it again is there."""
    assert "-- train.py" in " ".join(format_summary_lines(ENDS["stopped"]))
    goes_on = list(format_summary_lines(replace(ENDS["stopped"], continuation="job 33 continues from step 8")))
    assert f"next aboard status {RUN} --follow    # follows the job that continues it" in goes_on
    assert "-- train.py" not in " ".join(goes_on)
    ends = format_summary_lines(replace(ENDS["stopped"], continuation="not submitted again: Slurm did not say why"))
    assert "-- train.py" in " ".join(ends)


def summarized(run: str, age: float, **facts: Any) -> RunSummary:
    return RunSummary(**{"id": run, "began": NOW - age, "world": None, "step": None, "findings": (), **facts})


RUNS = (
    summarized(RUN, 192, state="running", world=16, step=1200),
    summarized("20261114-0507-keen-lark", 90_000, state="failed", world=8000, step=12, findings=(VERDICT,)),
    summarized("20261113-0507-calm-wren", 900_000, state="finished", world=8, step=120_000),
    summarized("20261112-0507-wise-yak", 5, state="lost"),
)


def drawn(view: RenderableType, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, highlight=False).print(view, crop=False)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_run(end: str, width: int) -> None:
    """What it came to in a line, the verdict and what followed, what no log has, what to type, where all is kept."""
    assert drawn(FinishedRunView(ENDS[end]), width) == (GOLDEN / f"end-{end}-{width}.txt").read_text("utf-8")


@pytest.mark.parametrize("end", ENDS)
def test_the_end_as_lines(end: str) -> None:
    """Into a pipe: the first word says what each line is, and the last one is what it came to."""
    text = "\n".join(format_summary_lines(ENDS[end])) + "\n"
    assert text == (GOLDEN / f"end-{end}-plain.txt").read_text("utf-8")


TRAIN = "aboard train sft.yaml 'n[1-2]' --set train.max_steps=100"


def next_lines(ended: FinishedRun) -> list[str]:
    return [line for line in format_summary_lines(ended) if line.startswith(f"next {ended.command}")]


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({"step": 62.0, "saved": 60.0}, "continues from step 60"),
        ({"step": 9.0}, "starts over: no checkpoint is complete"),
    ],
)
def test_a_training_that_ended_early_says_what_to_type(metrics: dict[str, float], said: str) -> None:
    """Stopped or failed, it is the command as it was typed, and the checkpoint that it continues from."""
    roster = replace(WELL.progress, training=TrainingStatus(metrics=metrics))
    stopped = replace(WELL, progress=roster, exit_code=130, command=TRAIN)
    for ended in (stopped, replace(stopped, findings=(VERDICT,), exit_code=137)):
        assert next_lines(ended) == [f"next {TRAIN}    # {said}"]
    assert next_lines(replace(stopped, exit_code=0)) == []


def test_a_stuck_run_that_the_user_stopped_has_not_failed() -> None:
    """Who stopped it is told, what it was stuck in, and where that is explained."""
    stuck = replace(VERDICT, diagnosis=hang.LOCK, consequences=())
    *_, why, again, _page, _logs, _record, done = format_summary_lines(replace(ENDS["stopped"], findings=(stuck,)))
    assert done.startswith("done: stopped after ")
    assert "you pressed Ctrl-C; until then it was stuck (hang-lock); exit code 130" in done
    assert why == f"next aboard why {RUN}    # what held it up"
    assert again.startswith("next aboard launch")


def test_after_lora_the_adapter_is_what_is_exported() -> None:
    well = replace(WELL, progress=replace(WELL.progress, training=TrainingStatus(metrics={"step": 9.0})))
    assert "exports the model for transformers" in "\n".join(format_summary_lines(well))
    assert "exports the LoRA adapter for PEFT" in "\n".join(format_summary_lines(replace(well, adapter=True)))


@pytest.mark.parametrize("width", [80, 200])
def test_the_list_of_runs(width: int) -> None:
    """One line a run; where there is no room beside it, the verdict stands below."""
    text = drawn(RunListView(RUNS, NOW), width)
    assert text == (GOLDEN / f"status-{width}.txt").read_text("utf-8")
    assert max(map(cell_len, text.splitlines())) <= width


def test_runs_as_lines() -> None:
    """A header, then six columns with tabs between, for cut; what isn't known is a dash."""
    head, *lines = format_run_lines(RUNS, NOW)
    assert head == "run\tstate\tage_seconds\tranks\tstep\tverdict"
    assert lines[0] == f"{RUN}\trunning\t192\t16\t1200\t-"
    assert lines[1].endswith(f"\t{VERDICT.seen}")
    assert lines[3] == "20261112-0507-wise-yak\tlost\t5\t-\t-\t-"


def test_no_run_yet() -> None:
    """An empty list says how to fill it."""
    assert "aboard launch" in drawn(RunListView((), NOW), 80)
