"""`aboard why RUN` for a run that is over: judges it again from its record."""

from dataclasses import replace
from datetime import datetime

from aboard.commands.runs.record_parts import read_record_parts
from aboard.commands.runs.recorded_run import parse_recorded_run
from aboard.commands.runs.status import summarize_run
from aboard.commands.why.replay_run import replay_run
from aboard.core.evidence.verdict import ReplayedJudgement
from aboard.core.slurm.job_state import JobStatus
from aboard.diagnoses import AboardError, Severity
from aboard.diagnoses.usage import run_records
from aboard.doctor.slurm.slurm_jobs import judge_job
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import Runs

# Among this many of the newest runs, one that ended badly is searched for.
_NEWEST = 20


def find_default_run(runs: Runs) -> RunDirectory:
    """The run to explain if none is named: the newest that ended badly since the last question.

    Without one, or if a run that began afterwards is live: the newest live run, or else the newest.
    """
    all_runs = runs.all()
    if not all_runs:
        raise AboardError(run_records.RUN_NONE, "there is no run yet", "others")
    live = next((run for run in all_runs if run.live), None)
    since = max(runs.last_question, live.began if live is not None else 0.0)
    over = (run for run in all_runs[:_NEWEST] if run.written > since and not run.live)
    return next(filter(_has_ended_badly, over), live or all_runs[0])


def _has_ended_badly(run: RunDirectory) -> bool:
    """Whether it is known to have failed; a Slurm job without an end may just run elsewhere."""
    known = ("failed", "refused") if run.slurm_job.exists() else ("failed", "refused", "lost")
    return summarize_run(run).state in known


def judge_finished_run(run: RunDirectory, job: JobStatus | None = None) -> ReplayedJudgement:
    """Judges a record by today's rules, like a bundle; only here a killed conductor is detected as well.

    If Slurm ended the `job` of the conductor, that is the reason.
    """
    replayed = replay_run(parse_recorded_run(run.id, read_record_parts(run), own=True))
    run_summary = summarize_run(run)
    if run_summary.state != "lost":
        return replayed
    # If a rank had died before, the lost conductor is only a warning, and comes second.
    blocks = run_summary.findings[0].severity is Severity.BLOCK
    ended = judge_job(job, datetime.now()) if job is not None else None  # noqa: DTZ005 - as Slurm's times
    lost = (*(() if ended is None else (ended,)), *run_summary.findings)
    findings = (*lost, *replayed.why.findings) if blocks else (*replayed.why.findings, *lost)
    return replace(replayed, why=replace(replayed.why, findings=findings))
