"""What `aboard why --json` prints about a run or a bundle."""

import asyncio
from dataclasses import replace

from aboard.core.evidence.verdict import Judgement, ReplayedJudgement
from aboard.core.run.run_state import GenerationEnd
from aboard.core.slurm.job_state import JobStatus
from aboard.diagnoses import Finding
from aboard.engine.conductor_client import ask_why
from aboard.engine.records.replay_run import judge_finished_run
from aboard.engine.records.status import SummaryState, find_resume_command, summarize_run
from aboard.lazy_dataclass import dataclass
from aboard.record.run_directory import RunDirectory


@dataclass(frozen=True, kw_only=True)
class RunExplanation(Judgement):
    """Why a run is stuck, slow or dead: the first finding is the verdict; without findings, nothing wrong was found.

    The findings of an active run are from the nodes now, those of a record by today's rules; `recorded` has those that
    Aboard `version` reported. `quiet` is how many seconds ago the run last progressed, `seconds` how long the answer
    took. `attempts` failed earlier. `resume` is the command that continues training.
    """

    run: str
    state: SummaryState
    note: str = ""
    recorded: tuple[Finding, ...] = ()
    version: str = ""
    attempts: tuple[GenerationEnd, ...] = ()
    resume: str = ""


def explain_run(run: RunDirectory, job: JobStatus | None) -> RunExplanation:
    """Asks the conductor of an active run; judges the record of any other."""
    summary = summarize_run(run)
    if run.live:
        return RunExplanation(run=run.id, state="running", attempts=summary.attempts, **vars(asyncio.run(ask_why(run))))
    return replace(
        explain_judgement(judge_finished_run(run, job)),
        state=summary.state,
        note=summary.note,
        attempts=summary.attempts,
        resume=find_resume_command(run) if summary.state in ("failed", "stopped") else "",
    )


def explain_judgement(judged: ReplayedJudgement) -> RunExplanation:
    """Of a record whose state is unknown, such as that of a bundle."""
    return RunExplanation(
        run=judged.run, state="unknown", recorded=judged.then, version=judged.version, **vars(judged.why)
    )
