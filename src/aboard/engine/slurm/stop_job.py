"""`aboard stop` for a run in a Slurm job: asks the conductor first, then cancels the job."""

import asyncio
from time import monotonic

from aboard.core.slurm.job_state import JobPhase
from aboard.diagnoses import AboardError
from aboard.diagnoses.slurm import remote_runs
from aboard.diagnoses.untrusted import Untrusted
from aboard.diagnoses.usage import commands
from aboard.engine.slurm.forward_command import call_forwarded
from aboard.engine.slurm.job_runs import JobRun, ask_job_status
from aboard.transport.slurm.slurm_commands import run_slurm_command

# Longer than KillWait, which is 30 s by default, and than slurmctld takes to notice.
CANCEL_SECONDS = 90.0
POLL_SECONDS = 0.5


async def stop_job_run(job_run: JobRun, *, now: bool) -> str:
    """Stops the run, and says how."""
    run, job = job_run.run.id, job_run.job.id
    if job_run.is_elsewhere:
        words = ["stop", run, *(["--now"] if now else [])]
        asked = await asyncio.to_thread(call_forwarded, job_run, words)
        if asked.returncode == 0:
            return f"{run} has stopped"
        if commands.STOP_SLOW.code in asked.stderr and not now:
            said = Untrusted(asked.stderr.strip().partition("\n")[0])
            raise AboardError(commands.STOP_SLOW, said.visible(300), run=run)
        await cancel_job(job)
        return f"{run} has stopped: its conductor did not reply, and job {job} was cancelled"
    await cancel_job(job)
    return f"{run} has stopped: job {job} was cancelled before its conductor started"


async def cancel_job(job: int) -> None:
    """Cancels the job, and waits until Slurm has ended it on all nodes."""
    said = await run_slurm_command(["scancel", str(job)])
    deadline = monotonic() + CANCEL_SECONDS
    while (status := await ask_job_status(job)) is not None and status.phase is not JobPhase.ENDED:
        if said.code or monotonic() > deadline:
            seen = Untrusted(said.stderr.strip()).visible(300) or f"job {job} is still {status.state.lower()}"
            raise AboardError(remote_runs.CANCEL, seen, job=job)
        await asyncio.sleep(POLL_SECONDS)
