"""The runs of this user that are Slurm jobs: what Slurm says about them, and where their conductors are."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from aboard.core.run.run_state import Run
from aboard.core.slurm.batch_script import list_marked_jobs
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
    """A run that is a Slurm job; `status` is None if Slurm has forgotten the job, or if it `is_silent`.

    `machine` has the names of this machine.
    """

    run: RunDirectory
    job: SlurmJob
    status: JobStatus | None
    machine: tuple[str, ...]
    is_silent: bool = False

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
        return self.run.events.exists() or self.run.findings.exists()


async def find_job_runs(runs: Iterable[RunDirectory], environ: Mapping[str, str], hostname: str) -> dict[str, JobRun]:
    """What Slurm says about those of these runs that are jobs, by their ids; not if their records are complete."""
    jobs = [(run, job) for run in runs if (job := read_slurm_job(run)) is not None and not _is_complete(run, job)]
    if not jobs:
        return {}
    queue = await _list_jobs()
    turns = asyncio.Semaphore(AT_ONCE)

    async def find(run: RunDirectory, job: SlurmJob) -> JobRun:
        job = _choose_newest(job, [] if queue is None else queue.get(run.id, []))
        # The comment tells a run's own job from one that got its id later, when Slurm's state was lost.
        jobs = queue or {}
        is_unmarked = job.id in jobs.get("", [])
        known = any(job.id in numbers for name, numbers in jobs.items() if name in (run.id, "") or not job.script)
        async with turns:
            # A forgotten job costs no question: there may be many.
            status = await ask_job_status(job.id) if known else None
        if is_unmarked and status is not None and job.script not in ("", status.script.raw()):
            status = None  # where a site rewrites comments, the script tells them apart
        machine = (environ.get("SLURMD_NODENAME", ""), hostname.partition(".")[0])
        return JobRun(run=run, job=job, status=status, machine=machine, is_silent=queue is None)

    return {each.run.id: each for each in await asyncio.gather(*(find(run, job) for run, job in jobs))}


def _is_complete(run: RunDirectory, job: SlurmJob) -> bool:
    """Whether the record here has the end of this job; a further job of the run has no batch host before it starts."""
    if run.live or (job.script and not job.batch_host):
        return False
    return Run.replay(run.id, read_events(run.events)).finished is not None


async def ask_job_status(job: int) -> JobStatus | None:
    """The job as Slurm reports it now; None if Slurm does not answer, or has forgotten the job."""
    return parse_job_status((await run_slurm_command(["scontrol", "--oneliner", "show", "job", str(job)])).stdout)


async def find_newest_job(run: RunDirectory, job: SlurmJob) -> SlurmJob:
    """The job that continues the recorded one, if there is one: only with a shared home can its conductor record it."""
    return _choose_newest(job, ((await _list_jobs()) or {}).get(run.id, []))


def _choose_newest(job: SlurmJob, numbers: Sequence[int]) -> SlurmJob:
    """The newest of the jobs that have the run's id in their comment."""
    newest = max(numbers, default=job.id)
    if not job.script or newest <= job.id:
        return job
    return SlurmJob(id=newest, attempt=job.attempt + 1, script=job.script)


async def _list_jobs() -> dict[str, list[int]] | None:
    """The user's jobs by run, those that ended some minutes ago too; None if Slurm does not reply."""
    said = await run_slurm_command(["squeue", "--me", "--states=all", "--noheader", "--format=%A %k"])
    return None if said.code else list_marked_jobs(said.stdout)
