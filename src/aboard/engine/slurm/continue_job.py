"""Continues a training run that Slurm ended: the same script as a further job, which resumes from the checkpoint."""

import re
from collections.abc import Mapping
from pathlib import Path

from aboard.core.slurm.job_ending import NOT_CONTINUED, EndingCause
from aboard.core.slurm.no_kill import has_requeue
from aboard.core.text.input_text import format_count
from aboard.diagnoses import AboardError
from aboard.engine.slurm.job_conductor import CONTINUED, JobWatch
from aboard.engine.slurm.submit_job import submit_script, write_batch_script
from aboard.record.run_directory import RunDirectory
from aboard.record.slurm_job import SlurmJob, write_slurm_job
from aboard.transport.slurm.slurm_commands import run_slurm_command

_SINGLETON = re.compile(r"^#SBATCH (?:--dependency|-d)\b.*\bsingleton\b", re.MULTILINE)
# Those of the job that ends: sbatch sets them anew.
_JOB_VARIABLES = ("SLURM", "SRUN_", "SBATCH_", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


async def continue_training(
    watch: JobWatch, run: RunDirectory, environ: Mapping[str, str], *, limit: int, saved: int | None
) -> str:
    """Submits the next job if Slurm ended this one and there was progress; returns what it did, or why it did not.

    Of a job that Slurm requeues, it only says so if the run goes on in it.

    `saved` is the step of the newest checkpoint; "" says that there is nothing to do.
    """
    job, ending = watch.job, watch.ending
    if limit and ending is not None and ending.cause is EndingCause.UNKNOWN:
        return f"{NOT_CONTINUED}Slurm did not say why it ends job {job.id}"
    if not limit or ending is None or ending.cause not in (EndingCause.TIME_LIMIT, EndingCause.PREEMPTED):
        return _describe_requeue(job, saved) if ending is not None and ending.cause is EndingCause.REQUEUED else ""
    if saved is None or saved <= (job.saved_step or 0):
        since = f" after step {job.saved_step:,}" if job.saved_step else ""
        return f"{NOT_CONTINUED}job {job.id} saved no checkpoint{since}"
    if job.attempt > limit:
        return f"{NOT_CONTINUED}{format_count(limit, 'further job')} did not complete the training"
    env = {name: value for name, value in environ.items() if not name.startswith(_JOB_VARIABLES)}
    env[CONTINUED] = f"{run.id} {job.attempt + 1} {saved}"
    try:
        script = _find_script(job) or await _fetch_script(job, run)
        # An option of sbatch replaces the one in the script.
        singleton = ",singleton" if _SINGLETON.search(script.read_text("utf-8", "surrogateescape")) else ""
        number = await submit_script(script, env, [f"--dependency=afterany:{job.id}{singleton}"])
    except (AboardError, OSError) as error:
        return f"{NOT_CONTINUED}{error.seen if isinstance(error, AboardError) else error.strerror}"
    write_slurm_job(run, SlurmJob(id=number, attempt=job.attempt + 1, script=str(script), saved_step=saved))
    return f"job {number} continues from step {saved:,} when job {job.id} has ended"


def _describe_requeue(job: SlurmJob, saved: int | None) -> str:
    script = _find_script(job)
    starts = saved is not None or (script is not None and has_requeue(script.read_text("utf-8", "surrogateescape")))
    return f"job {job.id} starts again: Slurm requeues it" if starts else ""


async def requeue_job(watch: JobWatch) -> None:
    """Requeues a job that Slurm would have requeued, had its conductor not stopped at the first notice.

    Slurm ends this process for it.
    """
    if watch.ending is not None and watch.ending.cause is EndingCause.REQUEUED and watch.ending.is_notice:
        await run_slurm_command(["scontrol", "requeue", str(watch.job.id)])


def _find_script(job: SlurmJob) -> Path | None:
    script = Path(job.script)
    return script if job.script and script.is_file() else None


async def _fetch_script(job: SlurmJob, run: RunDirectory) -> Path:
    """Slurm's copy of the script: without a shared home, the batch host has no other."""
    said = await run_slurm_command(["scontrol", "write", "batch_script", str(job.id), "-"])
    return write_batch_script(run, said.stdout)
