"""`aboard status`: summarizes the user's runs from their records."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from datetime import datetime
from pathlib import Path
from time import time
from typing import Any, Literal

from aboard.core.exit_codes import EXIT_INTERRUPTED
from aboard.core.run.events import Measurement
from aboard.core.run.run_progress import RunProgress
from aboard.core.run.run_state import WHY_CHARS, GenerationEnd, Run
from aboard.core.slurm.job_state import JobPhase, JobStatus, describe_job
from aboard.diagnoses import Finding, Shell, format_shell
from aboard.doctor.death.lost_conductor import LostConductor, explain_lost_conductor
from aboard.engine.records.saved_checkpoints import list_checkpoints
from aboard.engine.slurm.job_runs import JobRun
from aboard.lazy_dataclass import dataclass
from aboard.record.event_log import read_events
from aboard.record.json_documents import find_damaged, read_document, read_findings, read_training
from aboard.record.measurement_log import read_measurements
from aboard.record.run_directory import RunDirectory, RunState

# docs/scripting.md has what each means.
SummaryState = Literal[
    "running",
    "finished",
    "failed",
    "stopped",
    "interrupted",
    "not monitored",
    "refused",
    "blocked",
    "lost",
    "pending",
    "ended",
    "unknown",
]


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run. Only that of a job may be pending, ended or unknown; one that is refused was, by preflight.

    `began` is in seconds since 1970. `note` is why it was stopped, which codes refused it, what its record lacks, or
    what Slurm says about its job.
    """

    id: str
    state: SummaryState
    began: float
    world: int | None
    step: int | None
    findings: tuple[Finding, ...]
    note: str = ""
    generation: int = 1
    # The seconds of each class of its ledger, and the share of them that its steps needed, if that is known.
    spent: Mapping[str, float] = field(default_factory=dict)
    goodput: float | None = None
    # How its attempts ended that failed, if there was more than one.
    attempts: tuple[GenerationEnd, ...] = ()
    # The documents of its record that can't be read.
    damaged: tuple[str, ...] = ()
    # What its conductor says, if it was asked.
    progress: RunProgress | None = None

    @property
    def verdict(self) -> str:
        # Slurm knows why it killed a conductor, and preflight has often several reasons.
        explained = self.findings and not (self.note and (self.damaged or self.state in ("lost", "refused")))
        return self.findings[0].seen if explained else self.note


@dataclass(frozen=True, kw_only=True)
class StatusDocument:
    """The runs, newest first; a single active run that was named has its `progress`."""

    runs: tuple[RunSummary, ...]


def list_summaries(runs: Iterable[RunDirectory], jobs: Mapping[str, JobRun]) -> Iterator[RunSummary]:
    """In the same order; `jobs` has what Slurm says about some of them."""
    for run in runs:
        yield summarize_job_run(jobs[run.id]) if run.id in jobs else summarize_run(run)


def summarize_job_run(job_run: JobRun) -> RunSummary:
    """A run in a Slurm job: Slurm knows its state before its conductor starts, and if this machine has no record."""
    summary, status = summarize_run(job_run.run), job_run.status
    if status is None:
        state: SummaryState = "unknown" if job_run.is_silent else "ended"
        if job_run.is_recorded and summary.state != "lost":
            return summary
        return replace(
            summary, state=summary.state if job_run.is_recorded else state, note=_describe_forgotten(job_run)
        )
    note = f"job {status.id} {describe_job(status, datetime.now())}"  # noqa: DTZ005 - Slurm's times are local
    if status.phase is JobPhase.PENDING:
        return replace(summary, state="pending", note=note, findings=())
    if status.phase is JobPhase.ENDED:
        state = summary.state if job_run.is_recorded else _translate_end(status)
        # To Slurm, a conductor that was told to stop has failed.
        stopped = status.exit_code == EXIT_INTERRUPTED
        ended = summary.note or f"job {status.id} has ended"
        return replace(summary, state=state, note=ended if stopped else note)
    return replace(summary, state="running", note=note, findings=())


def summarize_run(run: RunDirectory) -> RunSummary:
    plan = read_document(run.plan)
    return summarize_folded_run(
        run, Run.replay(run.id, read_events(run.events)), plan if isinstance(plan, dict) else {}
    )


def summarize_folded_run(run: RunDirectory, folded: Run, plan: Mapping[str, Any]) -> RunSummary:
    """The same for a caller that has folded the events and read the plan."""
    world = plan.get("world")
    state, step = _describe_state(run, folded), _find_last_step(run, folded)
    lost = state == "lost"
    findings = (_diagnose_lost_conductor(run, folded, plan, step),) if lost else tuple(read_findings(run.findings))
    note = folded.stopping if state in ("stopped", "interrupted") else next(iter(folded.notices.values()), "")
    if state == "not monitored" and folded.finished is not None:
        note = folded.finished.why.visible(WHY_CHARS)
    if state == "blocked" and findings:
        state, note = "refused", f"refused by preflight: {', '.join(dict.fromkeys(each.code for each in findings))}"
    elif state == "blocked":
        note = note or "its command was refused before ranks started, and printed why"
    damaged = find_damaged(*(file for file, read in ((run.plan, plan), (run.findings, findings)) if not read))
    # A conductor that was killed has not recorded the end.
    until = max([folded.ledger.since, *(sample.at for sample in folded.samples.values())])
    return RunSummary(
        id=run.id,
        state=state,
        began=run.began,
        world=world if isinstance(world, int) else None,
        step=step,
        findings=findings,
        note="; ".join(filter(None, (*(f"{name} is damaged" for name in damaged), note))),
        damaged=damaged,
        generation=folded.generation.number,
        spent=folded.ledger.measure(until),
        goodput=folded.ledger.compute_goodput(step, until),
        attempts=tuple(folded.recoveries) if folded.generation.number > 1 else (),
    )


def summarize_progress(run: RunDirectory, progress: RunProgress) -> RunSummary:
    """An active run, without reading its record."""
    same = {name: getattr(progress, name) for name in ("world", "step", "generation", "spent", "goodput", "attempts")}
    note = progress.stopping
    return RunSummary(id=run.id, state="running", began=run.began, findings=(), note=note, progress=progress, **same)


def _translate_end(status: JobStatus) -> SummaryState:
    """How a run ended whose record is elsewhere, by the state of its job; the conductor's exit code is the job's."""
    if status.state == "CANCELLED" or status.exit_code == EXIT_INTERRUPTED:
        return "stopped"
    if status.state == "COMPLETED":
        return "not monitored" if status.is_unmonitored else "finished"
    return "failed"


def _describe_forgotten(job_run: JobRun) -> str:
    if job_run.is_silent:
        return f"Slurm does not reply about job {job_run.job.id}"
    place = f"; its record is on {job_run.batch_host}" if job_run.batch_host else ""
    return f"Slurm no longer knows job {job_run.job.id}, nor how it ended{place}"


def _describe_state(run: RunDirectory, folded: Run) -> SummaryState:
    if run.state is RunState.RUNNING:
        return "running"
    if folded.finished is not None:
        if folded.stopping:
            return "stopped"
        if not folded.finished.monitored:
            return "not monitored"
        return "finished" if folded.finished.code == 0 else "failed"
    # The conductor vanished without recording an end; the leases have stopped its ranks.
    if run.state is RunState.LOST:
        return "lost"
    return "interrupted" if folded.stopping else "blocked"


def _diagnose_lost_conductor(run: RunDirectory, folded: Run, plan: Mapping[str, Any], step: int | None) -> Finding:
    """Explains a run whose conductor was killed, from its record and the checkpoints on this machine."""
    retry, lease = _find_retry(run, plan), plan.get("lease")
    remains = LostConductor(
        pid=str(read_document(run.pid) or "unknown"),
        at=max([retry.at, *(event.at for event in read_events(run.events))]) or run.began,
        lease=lease if isinstance(lease, int | float) else None,
        command=retry.command,
        step=step,
        training=retry.training,
        saved=retry.saved,
    )
    return explain_lost_conductor(folded, remains, now=time())


@dataclass(frozen=True, kw_only=True)
class _Retry:
    """The command that starts a run again; `saved` is the step of a training run's last checkpoint.

    `at` is the time of the last measurement.
    """

    command: Shell | None
    training: bool
    saved: int | None
    at: float


def find_resume_command(run: RunDirectory) -> str:
    """The command that continues a training run that did not finish, and from which step; "" for any other run."""
    plan = read_document(run.plan)
    retry = _find_retry(run, plan if isinstance(plan, dict) else {})
    if not retry.training or retry.command is None:
        return ""
    saved = "starts over: no checkpoint is complete" if retry.saved is None else f"continues from step {retry.saved:,}"
    return f"{retry.command}    # {saved}"


def _find_retry(run: RunDirectory, plan: Mapping[str, Any]) -> _Retry:
    at, saved = 0.0, 0
    for sample in read_measurements(run.samples):
        at = max(at, sample.at)
        for measured in sample.figures.get("children", {}).values():
            saved = int(measured.get("metrics", {}).get("saved") or saved)
    command, cwd = plan.get("command"), plan.get("cwd")
    training = read_training(plan)
    if training is not None:
        here = list_checkpoints(Path(training["output_dir"]).expanduser())
        saved = max([saved, *(number for number, _attempt, _path in here)])
        resumes = training.get("resume") == "auto"
        command = command if resumes or command is None else f"{command} --set train.resume=auto"
    return _Retry(
        command=_format_retry(str(cwd), command) if command else None,
        training=training is not None,
        saved=saved or None,
        at=at,
    )


def _format_retry(folder: str, command: str) -> Shell:
    """The retry command; `command` is already quoted in the record."""
    return format_shell("cd {folder} && {command:shell}", folder=folder, command=Shell(command))


def _find_last_step(run: RunDirectory, folded: Run) -> int | None:
    """The step that every rank has reached, as the run itself shows it."""
    if folded.finished is not None and folded.finished.step is not None:
        return folded.finished.step
    now = (sample for sample in read_measurements(run.samples) if sample.at >= folded.generation.at)
    for sample in now:
        for child, measured in sample.figures.get("children", {}).items():
            metrics = measured.get("metrics", {})
            folded.take(Measurement(node=sample.node, at=sample.at, child=child, values=measured, metrics=metrics))
    return folded.step
