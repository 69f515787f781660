"""Runs in Slurm jobs, controlled from a login node whose home the nodes do not share."""

import os
import sys
import tarfile
from pathlib import Path

import pytest
from json_documents import read_document
from slurm_commands import SlurmStandIns, make_job_run
from typed_commands import aboard

from aboard.record.runs import Runs
from aboard.record.slurm_job import SlurmJob, read_slurm_job

RUN = "20261116-1950-calm-crane"
JOB = '{"id": 12, "script": "/home/me/job.sh"}'
RUNNING = "JobState=RUNNING Reason=None NodeList=n[1-2] BatchHost=n1 Restarts=0"
PENDING = "JobState=PENDING Reason=Priority StartTime=Unknown BatchHost=(null)"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmStandIns:
    """A login node with Slurm's commands and no runs."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("SLURM_JOB_ID", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)
    return SlurmStandIns(tmp_path / "bin", monkeypatch)


def test_status_lists_jobs_that_wait_run_and_ended(slurm: SlurmStandIns) -> None:
    """Slurm knows their states; a job that it has forgotten is named with the node of its record."""
    make_job_run("20261116-1950-calm-crane", '{"id": 11, "script": "x"}')
    make_job_run("20261116-1951-calm-crane", '{"id": 12, "script": "x"}')
    make_job_run("20261116-1952-calm-crane", '{"id": 13, "script": "x"}')
    make_job_run("20261116-1953-calm-crane", '{"id": 14, "script": "x", "batch_host": "n4"}')
    slurm.show(11, PENDING)
    slurm.show(12, RUNNING)
    slurm.show(13, "JobState=CANCELLED Reason=None ExitCode=0:15 BatchHost=n3")
    _head, *lines = (line.split("\t") for line in aboard("status").stdout.splitlines())
    assert [(line[1], line[5]) for line in lines] == [
        ("ended", "Slurm no longer knows job 14, nor how it ended; its record is on n4"),
        ("stopped", "job 13 was cancelled"),
        ("running", "job 12 is running on n[1-2]"),
        (
            "pending",
            "job 11 is waiting: jobs with a higher priority come first (Priority); Slurm has no estimate of its start",
        ),
    ]
    runs = read_document("status", aboard("status", "--json").stdout)["runs"]
    assert [(run["state"], run["note"]) for run in runs] == [(line[1], line[5]) for line in lines]


def test_a_run_without_a_job_never_asks_slurm(slurm: SlurmStandIns) -> None:
    """Most machines have no Slurm."""
    slurm.put("scontrol", "exit 1", env="PWD")
    Runs.of({"XDG_STATE_HOME": str(slurm.folder.parent)}).open_or_create(RUN)
    assert aboard("status").stdout.splitlines()[1].split("\t")[1] == "blocked"
    assert slurm.calls == []


@pytest.mark.parametrize("typed", [("logs", "--lines", "5"), ("why",), ("status", "calm-crane")])
def test_a_command_runs_on_the_batch_host(
    slurm: SlurmStandIns, capfd: pytest.CaptureFixture[str], typed: tuple[str, ...]
) -> None:
    """As one step of the job, with the same Python, the run's name, and its exit code."""
    make_job_run(RUN, JOB)
    slurm.show(12, RUNNING)
    slurm.put(
        "srun", "echo from n1; echo error >&2; echo 'srun: error: n1: task 0: Exited with exit code 7' >&2; exit 7"
    )
    ran = aboard(*typed)
    assert (ran.code, ran.stderr) == (7, "error\n")
    assert capfd.readouterr().out == "from n1\n"
    (call,) = slurm.calls
    named = () if "calm-crane" in typed else (RUN,)
    assert call[:4] == ["srun", "--jobid=12", "--nodelist=n1", "--overlap"]
    assert call[call.index(sys.executable) :] == [sys.executable, "-P", "-m", "aboard", *typed, *named]


def test_a_command_on_the_batch_host_itself_stays_there(slurm: SlurmStandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would call itself for ever."""
    make_job_run(RUN, JOB)
    slurm.show(12, RUNNING)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    assert "running" in aboard("status", RUN).stdout
    assert slurm.calls == []


def test_logs_of_a_job_that_waits_say_why(slurm: SlurmStandIns) -> None:
    """There is no output before the job starts."""
    make_job_run(RUN, JOB)
    slurm.show(12, PENDING)
    refused = aboard("logs", RUN)
    assert refused.code == 3
    assert "[slurm-waiting]" in refused.stderr
    assert "squeue --start --jobs=12" in refused.stderr


def test_logs_of_a_job_that_has_ended_name_the_node_of_the_record(slurm: SlurmStandIns) -> None:
    """The fix reads it there."""
    make_job_run(RUN, JOB)
    slurm.show(12, "JobState=TIMEOUT TimeLimit=01:00:00 ExitCode=0:15 BatchHost=n1")
    refused = aboard("logs", RUN)
    assert "[slurm-record-away]" in refused.stderr
    assert f"srun --nodes=1 --ntasks=1 --nodelist=n1 {sys.executable} -m aboard logs {RUN}" in " ".join(
        refused.stderr.split()
    )


def test_a_job_that_was_cancelled_while_it_waited_never_started(slurm: SlurmStandIns) -> None:
    """Slurm knows that, so it is not called forgotten."""
    make_job_run(RUN, JOB)
    slurm.show(12, "JobState=CANCELLED Reason=None ExitCode=0:0 NodeList=(null) BatchHost=(null)")
    refused = aboard("why", RUN)
    assert (refused.code, "[log-cancelled]" in refused.stderr) == (3, True)
    assert f"{RUN} never started: job 12 was cancelled while it waited" in " ".join(refused.stderr.split())
    assert "job 12 was cancelled while it waited" in aboard("status").stdout


def test_a_job_that_slurm_has_forgotten_is_called_so(slurm: SlurmStandIns) -> None:
    """With the command that may still know its end."""
    make_job_run(RUN, JOB)
    refused = " ".join(aboard("why", RUN).stderr.split())
    assert "Slurm no longer knows job 12" in refused
    assert "how it ended is not known here" in refused
    assert "sacct --jobs=12" in refused


def test_stop_cancels_a_job_that_waits(slurm: SlurmStandIns) -> None:
    """There is no conductor to ask; without a name, the only active run is meant."""
    make_job_run(RUN, JOB)
    slurm.show(12, PENDING)
    slurm.put("scancel", f"echo JobId=12 JobState=CANCELLED > {slurm.folder}/job-12")
    stopped = aboard("stop")
    assert (stopped.code, slurm.calls) == (0, [["scancel", "12"]])
    assert stopped.stdout == f"{RUN} has stopped: job 12 was cancelled before its conductor started\n"


def test_a_job_that_got_the_id_of_a_run_later_is_not_stopped(slurm: SlurmStandIns) -> None:
    """Ids start again when Slurm's state was lost: another job of the user has the id then, and not the run's name."""
    make_job_run(RUN, JOB)
    slurm.show(12, PENDING, comment="precious")
    assert "Slurm no longer knows job 12" in aboard("status").stdout
    assert aboard("stop", RUN).code != 0
    assert "[stop-none]" in aboard("stop").stderr
    assert slurm.calls == []


def test_a_job_whose_comment_the_site_has_rewritten_is_found_by_its_recorded_id(slurm: SlurmStandIns) -> None:
    """A site's job_submit plug-in may replace comments; the job's script tells it from another one with the id."""
    make_job_run(RUN, JOB)
    slurm.show(12, f"{PENDING} Command=/home/me/job.sh", comment="account=llm")
    assert "job 12 is waiting" in aboard("status", RUN).stdout


@pytest.mark.parametrize(("code", "cancelled"), [(0, []), (3, [["scancel", "12"]])])
def test_stop_asks_the_conductor_first(slurm: SlurmStandIns, code: int, cancelled: list[list[str]]) -> None:
    """Only a job whose conductor does not reply is cancelled."""
    make_job_run(RUN, JOB)
    slurm.show(12, RUNNING)
    slurm.put("srun", f"exit {code}")
    slurm.put("scancel", f"echo JobId=12 JobState=CANCELLED > {slurm.folder}/job-12")
    assert aboard("stop", RUN).code == 0
    asked, *rest = slurm.calls
    assert asked[-2:] == ["stop", RUN]
    assert rest == cancelled


def test_stop_does_not_cancel_a_run_that_still_saves(slurm: SlurmStandIns) -> None:
    """Its conductor replied: the user decides whether to skip the grace period."""
    make_job_run(RUN, JOB)
    slurm.show(12, RUNNING)
    slurm.put("srun", "echo 'error [stop-slow]: it did not stop within 120 s' >&2; exit 3")
    refused = aboard("stop", RUN)
    assert (refused.code, len(slurm.calls)) == (3, 1)
    assert f"aboard stop {RUN} --now" in refused.stderr


def test_a_bundle_comes_from_the_batch_host(
    slurm: SlurmStandIns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive is written here; the record is there."""
    archive = tmp_path / "there.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(__file__, "manifest.json")
    make_job_run(RUN, JOB)
    slurm.show(12, RUNNING)
    slurm.put("srun", f"cat {archive}")
    monkeypatch.chdir(tmp_path)
    assert aboard("bundle", RUN, "--yes").code == 0
    assert (tmp_path / f"{RUN}.tar.gz").read_bytes() == archive.read_bytes()
    assert slurm.calls[0][-4:] == ["bundle", RUN, "--output", "-"]


def test_the_job_that_continues_a_run_is_found_by_its_comment(slurm: SlurmStandIns) -> None:
    """Without a shared home, the batch host can't record it here."""
    run = make_job_run(RUN, JOB)
    slurm.show(12, "JobState=TIMEOUT BatchHost=n1")
    slurm.show(15, PENDING, comment=f"aboard:{RUN}")
    assert aboard("status", RUN).stdout.split("job ")[1].startswith("15 is waiting")
    assert read_slurm_job(run) == SlurmJob(id=12, script="/home/me/job.sh")


def test_a_job_without_ranks_was_not_monitored(slurm: SlurmStandIns) -> None:
    """Also where only the batch host has the record: its conductor has marked the job, whose exit code is 0."""
    make_job_run(RUN, JOB)
    for own, state in (("", "finished"), ("not-monitored ", "not monitored")):
        comment = f"tests {own}aboard:{RUN}"
        slurm.show(12, f"JobState=COMPLETED ExitCode=0:0 BatchHost=n1 Comment={comment}", comment=comment)
        assert aboard("status").stdout.splitlines()[1].split("\t")[1] == state


def test_why_explains_the_job_that_waits_and_not_an_older_run(slurm: SlurmStandIns) -> None:
    """Such as on a drained node: it began after the run that failed, and nobody has asked about that one."""
    older = make_job_run("20261116-1200-old-owl", '{"id": 11}')
    older.events.write_text('{"at": 1.0, "node": "", "seq": 0, "kind": "finished", "data": {"why": "x", "code": 1}}\n')
    os.utime(older.path / "began", (1, 1))
    make_job_run(RUN, JOB)
    slurm.show(12, "JobState=PENDING Reason=ReqNodeNotAvail,_UnavailableNodes:n2")
    asked = aboard("why")
    assert f"{RUN} has not started: job 12 is waiting: a node it needs is down, drained" in asked.stderr
    assert "n2" in asked.stderr


def test_a_controller_that_does_not_reply_is_not_taken_for_a_forgotten_job(slurm: SlurmStandIns) -> None:
    """The run may well go on."""
    make_job_run(RUN, JOB)
    slurm.put("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    assert aboard("status").stdout.splitlines()[1].split("\t")[1::4] == ["unknown", "Slurm does not reply about job 12"]
    assert "scontrol ping" in aboard("logs", RUN).stderr


def test_a_finished_run_in_a_job_that_goes_on_is_finished(slurm: SlurmStandIns) -> None:
    """A script or salloc's shell may run several commands; the record here has the end of this one."""
    run = make_job_run(RUN, '{"id": 12}')
    slurm.show(12, RUNNING)
    run.events.write_text('{"at": 1.0, "node": "", "seq": 0, "kind": "finished", "data": {"why": "done", "code": 0}}\n')
    assert aboard("status").stdout.splitlines()[1].split("\t")[1] == "finished"
