"""The Slurm job of a run, as recorded in the run directory by the machine that submitted it and by the conductor."""

import json
from dataclasses import asdict

from aboard.core.decoding import try_decode
from aboard.durable_files import write_atomically
from aboard.lazy_dataclass import dataclass
from aboard.record.json_documents import read_document
from aboard.record.run_directory import PRIVATE_FILE, RunDirectory


@dataclass(frozen=True, kw_only=True)
class SlurmJob:
    """`id` is Slurm's job id. `attempt` counts the jobs of a run that was submitted again, from 1.

    `batch_host` is the node that runs the conductor; it is "" until the conductor starts. `script` is the path of the
    submitted script, "" for a job that the user submitted. `saved_step` is the last step that an earlier job of this
    run has saved.
    """

    id: int
    attempt: int = 1
    batch_host: str = ""
    script: str = ""
    saved_step: int | None = None


def write_slurm_job(run: RunDirectory, job: SlurmJob) -> None:
    """Records the job; the last one counts."""
    write_atomically(run.slurm_job, json.dumps(asdict(job)), sync=False, mode=PRIVATE_FILE)


def read_slurm_job(run: RunDirectory) -> SlurmJob | None:
    """The job that a run belongs to; None for a run without Slurm."""
    return try_decode(SlurmJob, read_document(run.slurm_job))
