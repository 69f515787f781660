"""Reads the nodes of the Slurm job that this process runs in."""

import subprocess
from collections.abc import Mapping
from dataclasses import replace

from aboard.core.slurm.allocation import SlurmAllocation, is_job_over, manages_gpus, parse_allocation, parse_job_id
from aboard.diagnoses import AboardError
from aboard.diagnoses.slurm import allocation

# slurmctld answers within a second. Without an answer, the job's environment is enough.
_SECONDS = 10.0


def read_allocation(environ: Mapping[str, str]) -> SlurmAllocation | None:
    """The nodes of the job that this process runs in, with its GPUs on each; None outside a job."""
    job = parse_job_id(environ)
    if job is None:
        return None
    shown, error = _show(environ, "--details", "job", str(job))
    if is_job_over(shown) or "Invalid job id" in error:
        raise AboardError(allocation.OVER, f"SLURM_JOB_ID is {job} in this shell, but that job has ended")
    found = parse_allocation(environ, shown)
    if found is None:
        seen = f"neither SLURM_JOB_NODELIST nor scontrol lists the nodes of Slurm job {job}"
        raise AboardError(allocation.NODE_LIST, seen, job=job)
    if found.has_gpus or manages_gpus(_show(environ, "config")[0]):
        return found
    # Slurm does not know of GPUs: each node's own count applies.
    return replace(found, nodes=tuple(replace(node, gpus=None) for node in found.nodes))


def _show(environ: Mapping[str, str], *words: str) -> tuple[str, str]:
    """The output of `scontrol show`, and its errors; both are empty if it can't run here."""
    try:
        done = subprocess.run(
            ["scontrol", "show", *words],
            env={**environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    return done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
