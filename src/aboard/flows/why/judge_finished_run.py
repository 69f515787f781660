"""`aboard why RUN` for a run that is over: judges it again from its record."""

from dataclasses import replace

from aboard.core.evidence.verdict import ReplayedJudgement
from aboard.diagnoses import AboardError, Severity
from aboard.diagnoses.usage import run_records
from aboard.flows.status import summarize_run
from aboard.flows.why.record_parts import read_record_parts
from aboard.flows.why.recorded_run import parse_recorded_run
from aboard.flows.why.replay_run import replay_run
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import Runs


def find_default_run(runs: Runs) -> RunDirectory:
    """The run to explain if none is named: the newest live run, or else the newest."""
    all_runs = runs.all()
    if not all_runs:
        raise AboardError(run_records.RUN_NONE, "there is no run yet", "others")
    return next((run for run in all_runs if run.live), all_runs[0])


def judge_finished_run(run: RunDirectory) -> ReplayedJudgement:
    """Judges a record by today's rules, like a bundle; only here a killed conductor is detected as well."""
    replayed = replay_run(parse_recorded_run(run.id, read_record_parts(run), own=True))
    run_summary = summarize_run(run)
    if run_summary.state != "lost":
        return replayed
    # If a rank had died before, the lost conductor is only a warning, and comes second.
    blocks = run_summary.findings[0].severity is Severity.BLOCK
    findings = (
        (*run_summary.findings, *replayed.why.findings) if blocks else (*replayed.why.findings, *run_summary.findings)
    )
    return replace(replayed, why=replace(replayed.why, findings=findings))
