"""The runs of this user that are Slurm jobs: what Slurm says about them, and where their conductors are."""

import asyncio
from collections.abc import Iterable, Mapping

from aboard.core.run.run_state import Run
from aboard.core.slurm.job_state import JobPhase, JobStatus, parse_job_status
from aboard.lazy_dataclass import dataclass
from aboard.record.event_log import read_events
from aboard.record.run_directory import RunDirectory
from aboard.record.slurm_job import SlurmJob, read_slurm_job
from aboard.transport.slurm.slurm_commands import run_slurm_command

# Questions to slurmctld at the same time.
AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class JobRun:
    """A run that is a Slurm job; `status` is None if Slurm does not reply or has forgotten the job.

    `machine` has the names of this machine.
    """

    run: RunDirectory
    job: SlurmJob
    status: JobStatus | None
    machine: tuple[str, ...]

    @property
    def batch_host(self) -> str:
        """The node of the conductor, "" while it is unknown, and for one on a login node."""
        if self.job.script and self.status is not None and self.status.batch_host:
            return self.status.batch_host
        return self.job.batch_host

    @property
    def is_elsewhere(self) -> bool:
        """Whether the conductor runs on a node of the job that is not this machine."""
        active = self.status is not None and self.status.phase in (JobPhase.RUNNING, JobPhase.ENDING)
        return active and self.batch_host not in ("", *self.machine)

    @property
    def is_waiting(self) -> bool:
        """Whether its job is pending."""
        return self.status is not None and self.status.phase is JobPhase.PENDING

    @property
    def is_active(self) -> bool:
        """Whether its job waits or runs."""
        return self.status is not None and self.status.phase is not JobPhase.ENDED

    @property
    def is_recorded(self) -> bool:
        """Whether this machine has the conductor's record; without a shared home only the batch host has it."""
        return self.run.events.exists() or self.run.check.exists()


async def find_job_run(run: RunDirectory, environ: Mapping[str, str], hostname: str) -> JobRun | None:
    """What Slurm says about this run's job; None for a run without one, and for a run whose record is complete."""
    found = await find_job_runs([run], environ, hostname)
    return found.get(run.id)


async def find_job_runs(runs: Iterable[RunDirectory], environ: Mapping[str, str], hostname: str) -> dict[str, JobRun]:
    """The same for several runs, by their ids."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def find(run: RunDirectory, job: SlurmJob) -> JobRun:
        async with turns:
            job = await find_newest_job(run, job)
            return JobRun(
                run=run,
                job=job,
                status=await ask_job_status(job.id),
                machine=(environ.get("SLURMD_NODENAME", ""), hostname.partition(".")[0]),
            )

    jobs = [(run, job) for run in runs if (job := read_slurm_job(run)) is not None and not _is_complete(run, job)]
    return {each.run.id: each for each in await asyncio.gather(*(find(run, job) for run, job in jobs))}


def _is_complete(run: RunDirectory, job: SlurmJob) -> bool:
    """Whether the record here has the end of this job: it has a batch host once its conductor has started."""
    return bool(job.batch_host) and not run.live and Run.replay(run.id, read_events(run.events)).finished is not None


async def ask_job_status(job: int) -> JobStatus | None:
    """The job as Slurm reports it now; None if Slurm does not answer, or has forgotten the job."""
    return parse_job_status((await run_slurm_command(["scontrol", "--oneliner", "show", "job", str(job)])).stdout)


async def find_newest_job(run: RunDirectory, job: SlurmJob) -> SlurmJob:
    """The job that continues the recorded one, if there is one: the batch host can't record it without a shared home.

    All jobs of a run have the run's id as their name.
    """
    if not job.script:
        return job
    said = await run_slurm_command(["squeue", "--me", "--noheader", "--format=%A", f"--name={run.id}"])
    newest = max((int(word) for word in said.stdout.split() if word.isdecimal()), default=job.id)
    return job if newest <= job.id else SlurmJob(id=newest, attempt=job.attempt + 1, script=job.script)
