"""The conductor inside a Slurm job: its record, what it does when Slurm ends the job, and the job that continues it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from slurm_commands import SlurmStandIns, make_job_run
from typed_commands import aboard

from aboard.core.slurm.job_ending import EndingCause, JobEnding
from aboard.engine.request.typed_words import remove_run_options
from aboard.engine.slurm.continue_job import continue_training, requeue_job
from aboard.engine.slurm.job_conductor import JobWatch, record_own_job
from aboard.record.runs import Runs
from aboard.record.slurm_job import SlurmJob, read_slurm_job

RUN = "20261116-1950-calm-crane"
IN_JOB = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "n1",
    "SLURMD_NODENAME": "n1",
    "CUDA_VISIBLE_DEVICES": "0",
    "HF_TOKEN": "kept",
}
# Prints when it runs, and when it has saved.
PROGRAM = """\
import signal, sys
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("training", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmStandIns:
    """A batch host with Slurm's commands and no runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return SlurmStandIns(tmp_path / "bin", monkeypatch)


def test_the_conductor_records_its_node_and_keeps_what_the_login_node_recorded(slurm: SlurmStandIns) -> None:
    """Both write the same record if the home is shared."""
    run = make_job_run(RUN, '{"id": 12, "script": "/home/me/job.sh"}')
    assert record_own_job(run, IN_JOB) == SlurmJob(id=12, batch_host="n1", script="/home/me/job.sh")
    assert read_slurm_job(run) == SlurmJob(id=12, batch_host="n1", script="/home/me/job.sh")


def test_a_further_job_knows_which_one_it_is(slurm: SlurmStandIns) -> None:
    """From its environment, since another batch host has no record; that of another run's job does not count."""
    run = Runs.of(os.environ).open_or_create(RUN)
    other = record_own_job(run, {**IN_JOB, "ABOARD_CONTINUED": "20261116-1950-late-owl 3 400"})
    assert other == SlurmJob(id=12, batch_host="n1")
    job = record_own_job(run, {**IN_JOB, "ABOARD_CONTINUED": f"{RUN} 3 400"})
    assert job == SlurmJob(id=12, attempt=3, batch_host="n1", saved_step=400)
    assert record_own_job(run, {}) is None


def test_a_run_is_continued_in_its_directory(slurm: SlurmStandIns) -> None:
    """The machine that submitted it may have made the directory; else it is made now."""
    runs = Runs.of(os.environ)
    made = runs.open_or_create(RUN)
    made.events.write_text("x")
    assert runs.open_or_create(RUN).events.read_text() == "x"


def test_the_options_of_a_script_are_not_part_of_the_typed_command() -> None:
    """What Aboard suggests to type again is what the user typed; words of the program stay."""
    words = ["train", "--run", RUN, "--resubmit", "5", "my.yaml"]
    assert remove_run_options(words) == ["train", "my.yaml"]
    assert remove_run_options(["launch", "--", "p.py", "--run", "x"]) == ["launch", "--", "p.py", "--run", "x"]


@pytest.mark.parametrize("cause", [EndingCause.TIME_LIMIT, EndingCause.PREEMPTED])
def test_a_training_that_saved_continues_in_a_further_job(
    slurm: SlurmStandIns, cause: EndingCause, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same script, after this job, with the number of the attempt and the step to beat; no variable of this job."""
    slurm.put("sbatch", "env > $PWD/exported; echo 13")
    run = make_job_run(RUN, "{}")
    monkeypatch.chdir(run.path)
    job = SlurmJob(id=12, attempt=2, batch_host="n1", saved_step=100)
    assert _continue(job, cause, limit=5, saved=400) == "job 13 continues from step 400 when job 12 has ended"
    assert slurm.calls == [["sbatch", "--parsable", "--dependency=afterany:12", str(run.batch_script)]]
    # Without a shared home, from Slurm's copy.
    assert run.batch_script.read_text() == "#!/bin/bash\n"
    assert read_slurm_job(run) == SlurmJob(id=13, attempt=3, script=str(run.batch_script), saved_step=400)
    exported = dict(line.split("=", 1) for line in Path("exported").read_text().splitlines() if "=" in line)
    assert (exported["ABOARD_CONTINUED"], exported["HF_TOKEN"]) == (f"{RUN} 3 400", "kept")
    assert not {"SLURM_JOB_ID", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES"} & set(exported)


def test_a_further_job_is_still_the_only_one_of_its_name(slurm: SlurmStandIns) -> None:
    """The dependency on the job before would replace the singleton of the script."""
    slurm.put("sbatch", "echo 13")
    run = make_job_run(RUN, "{}")
    run.batch_script.write_text("#!/bin/bash\n#SBATCH --dependency=singleton\n")
    _continue(SlurmJob(id=12, script=str(run.batch_script)), EndingCause.TIME_LIMIT, limit=5, saved=400)
    assert slurm.calls[0][2] == "--dependency=afterany:12,singleton"


@pytest.mark.parametrize(
    ("job", "cause", "saved", "why"),
    [
        (SlurmJob(id=12), EndingCause.CANCELLED, 400, ""),
        (SlurmJob(id=12), EndingCause.REQUEUED, 400, "job 12 starts again: Slurm requeues it"),
        (SlurmJob(id=12), EndingCause.REQUEUED, None, ""),
        (SlurmJob(id=12), EndingCause.UNKNOWN, 400, "not submitted again: Slurm did not say why it ends job 12"),
        (SlurmJob(id=12), EndingCause.TIME_LIMIT, None, "not submitted again: job 12 saved no checkpoint"),
        (
            SlurmJob(id=12, attempt=2, saved_step=400),
            EndingCause.TIME_LIMIT,
            400,
            "not submitted again: job 12 saved no checkpoint after step 400",
        ),
        (
            SlurmJob(id=12, attempt=3, saved_step=400),
            EndingCause.TIME_LIMIT,
            500,
            "not submitted again: 2 further jobs did not complete the training",
        ),
    ],
)
def test_a_job_that_would_not_help_is_not_submitted(
    slurm: SlurmStandIns, job: SlurmJob, cause: EndingCause, saved: int | None, why: str
) -> None:
    """Cancelled by the user, requeued by Slurm, without progress, or once too often."""
    make_job_run(RUN, "{}")
    slurm.put("sbatch", "echo 13")
    assert _continue(job, cause, limit=2, saved=saved) == why
    assert slurm.calls == []


def test_a_launch_that_slurm_requeues_is_not_to_be_launched_again(tmp_path: Path) -> None:
    """With --requeue in its script it starts again by itself; a second copy would write over the first."""
    script = tmp_path / "job.sh"
    make_job_run(RUN, "{}")
    job = SlurmJob(id=12, script=str(script))
    for line, said in (("--requeue", "job 12 starts again: Slurm requeues it"), ("--no-requeue", "")):
        script.write_text(f"#!/bin/bash\n#SBATCH {line}\n")
        assert _continue(job, EndingCause.REQUEUED, limit=0, saved=None) == said


def test_a_refused_submission_is_reported(slurm: SlurmStandIns) -> None:
    """The run has ended in order, and the user learns why nothing continues it."""
    make_job_run(RUN, "{}")
    slurm.put("sbatch", "echo 'sbatch: error: Batch job submission failed: Invalid qos specification' >&2; exit 1")
    said = _continue(SlurmJob(id=12), EndingCause.TIME_LIMIT, limit=2, saved=400)
    assert said.startswith("not submitted again: ")
    assert "Invalid qos specification" in said


def _continue(job: SlurmJob, cause: EndingCause, *, limit: int, saved: int | None) -> str:
    watch = JobWatch(job, IN_JOB)
    watch.ending = JobEnding(cause=cause, why="")
    run = Runs.of(os.environ).open_run(RUN)
    return asyncio.run(continue_training(watch, run, {**os.environ, **IN_JOB}, limit=limit, saved=saved))


@pytest.mark.parametrize("calls", [1, 0])
def test_a_job_that_slurm_would_requeue_is_requeued(slurm: SlurmStandIns, calls: int) -> None:
    """Its conductor stopped at the first notice: else Slurm would take it for finished."""
    slurm.put("scontrol", "", env="PWD")
    watch = JobWatch(SlurmJob(id=12), IN_JOB)
    watch.ending = JobEnding(cause=EndingCause.REQUEUED, why="", is_notice=bool(calls))
    asyncio.run(requeue_job(watch))
    assert len(slurm.calls) == calls


@pytest.mark.ci
@pytest.mark.parametrize(
    ("number", "fields", "why"),
    [
        (signal.SIGUSR1, "JobState=RUNNING EndTime=2999-01-01T00:00:00", "job 12 reaches its time limit in"),
        (signal.SIGTERM, "JobState=COMPLETING Reason=None Restarts=0 EndTime=Unknown", "job 12 was cancelled"),
    ],
)
def test_slurms_signals_let_the_ranks_save_and_say_why(
    slurm: SlurmStandIns, tmp_path: Path, number: signal.Signals, fields: str, why: str
) -> None:
    """The run stops like after Ctrl-C, and its record has Slurm's reason."""
    # Another run for each signal: both tests may run at the same time, and a node has one directory per run.
    run_id = RUN.replace("calm", "bold") if number is signal.SIGUSR1 else RUN
    slurm.show(12, "JobState=RUNNING EndTime=Unknown")
    (tmp_path / "job.py").write_text(PROGRAM)
    command = ["launch", "localhost", "--check", "none", "--run", run_id, "--", "job.py"]
    process = subprocess.Popen(
        [sys.executable, "-m", "aboard", *command],
        cwd=tmp_path,
        env=_build_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as said:
        lines = []
        for line in said:
            lines.append(line)
            if line.endswith("training\n"):
                slurm.show(12, fields)
                process.send_signal(number)
    text = "".join(lines)
    assert process.wait() == 130, text
    assert "] saved\n" in text
    assert f": {why}" in text.splitlines()[-1]
    assert "next aboard launch localhost --check none -- job.py" in text
    run = Runs.of(os.environ).open_run(run_id)
    assert read_slurm_job(run) == SlurmJob(id=12, batch_host="n1")
    said_why = aboard("why", run_id).stdout
    assert said_why.startswith(f"{run_id} stopped ")
    assert f" ago ({why}" in said_why
    assert aboard("status").stdout.splitlines()[1].split("\t")[5].startswith(why)


def _build_environment() -> Mapping[str, str]:
    return {**os.environ, **IN_JOB, "HOME": os.environ["XDG_STATE_HOME"]}


def test_further_jobs_that_would_start_over_are_refused(slurm: SlurmStandIns, tmp_path: Path) -> None:
    """Before anything is prepared or submitted; the fix resumes from the newest checkpoint."""
    pytest.importorskip("datasets")
    settings = "train: {model: m, resume: none}\ndata: {files: x.jsonl}\n"
    (tmp_path / "t.yaml").write_text(f"{settings}cluster: {{slurm: {{nodes: 2, resubmit: {{limit: 2}}}}}}\n")
    refused = aboard("train", str(tmp_path / "t.yaml"))
    assert refused.code == 3
    assert "[slurm-resubmit]" in refused.stderr
    assert f"aboard train {tmp_path}/t.yaml --set train.resume=auto" in refused.stderr
