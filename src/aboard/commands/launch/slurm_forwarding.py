"""Commands about a run whose conductor is on the batch host of a Slurm job."""

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aboard.record.run_directory import RunDirectory

if TYPE_CHECKING:
    from aboard.engine.slurm.job_runs import JobRun


def find_slurm_runs(runs: Sequence[RunDirectory]) -> "dict[str, JobRun]":
    """What Slurm says about those of these runs that are jobs, unless their records are complete here."""
    if not any(run.slurm_job.exists() for run in runs):
        return {}
    from aboard.engine.slurm.job_runs import find_job_runs  # noqa: PLC0415 - most runs are no jobs

    return asyncio.run(find_job_runs(runs, os.environ, os.uname().nodename))


def forward_to_batch_host(run: RunDirectory, typed: str | None, *, must_be_here: bool = True) -> "JobRun | None":
    """Runs the typed command on the batch host and exits with its code, if the conductor is there.

    Otherwise returns what Slurm says about the job; with `must_be_here`, raises if this machine has no record.
    `typed` is the run as it was typed, if it was.
    """
    where = find_slurm_runs([run]).get(run.id)
    if where is None:
        return None
    from aboard.engine.slurm.forward_command import build_absent_error, forward_command  # noqa: PLC0415 - as above

    words = [*sys.argv[1:], *([] if typed is not None else [run.id])]
    if where.is_elsewhere:
        sys.exit(forward_command(where, words))
    if must_be_here and not where.is_recorded:
        raise build_absent_error(where, words)
    return where


def read_from_batch_host(run: RunDirectory, words: Sequence[str]) -> bytes | None:
    """The output of a command on the batch host; None if this machine has the record itself."""
    where = find_slurm_runs([run]).get(run.id)
    if where is None or where.is_recorded:
        return None
    from aboard.engine.slurm.forward_command import build_absent_error, read_forwarded  # noqa: PLC0415 - as above

    if not where.is_elsewhere:
        raise build_absent_error(where, words)
    return read_forwarded(where, words)
