"""Reads the nodes of the Slurm job that this process runs in."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from aboard.core.slurm.allocation import SlurmAllocation, is_job_over, manages_gpus, parse_allocation, parse_job_id
from aboard.core.slurm.no_kill import describe_missing_no_kill, find_no_kill, has_requeue
from aboard.diagnoses import AboardError
from aboard.diagnoses.slurm import allocation

# slurmctld answers within a second. Without an answer, the job's environment is enough.
_SECONDS = 10.0


def read_allocation(environ: Mapping[str, str]) -> SlurmAllocation | None:
    """The nodes of the job that this process runs in, with its GPUs on each; None outside a job."""
    job = parse_job_id(environ)
    if job is None:
        return None
    shown, error = _run_scontrol(environ, "show", "--details", "job", str(job))
    if is_job_over(shown) or "Invalid job id" in error:
        raise AboardError(allocation.OVER, f"SLURM_JOB_ID is {job} in this shell, but that job has ended")
    found = parse_allocation(environ, shown)
    if found is None:
        seen = f"neither SLURM_JOB_NODELIST nor scontrol lists the nodes of Slurm job {job}"
        raise AboardError(allocation.NODE_LIST, seen, job=job)
    if found.has_gpus or manages_gpus(_run_scontrol(environ, "show", "config")[0]):
        return found
    # Slurm does not know of GPUs: each node's own count applies.
    return replace(found, nodes=tuple(replace(node, gpus=None) for node in found.nodes))


def describe_node_failure(
    environ: Mapping[str, str], allocation: SlurmAllocation, *, recovers: bool = False
) -> str | None:
    """A note if Slurm would end the whole job when one node fails."""
    script = _read_batch_script(environ, allocation)
    batch = script.startswith("#!")
    no_kill = find_no_kill(environ, script=script if batch else None, salloc=() if batch else _find_salloc_argv())
    return describe_missing_no_kill(allocation, no_kill=no_kill, batch=batch, recovers=recovers)


def is_requeue_wanted(environ: Mapping[str, str], allocation: SlurmAllocation) -> bool:
    """Whether the batch script has --requeue, and not only Slurm's default."""
    return has_requeue(_read_batch_script(environ, allocation))


def _read_batch_script(environ: Mapping[str, str], allocation: SlurmAllocation) -> str:
    return _run_scontrol(environ, "write", "batch_script", str(allocation.job), "-")[0]


def _find_salloc_argv() -> list[str]:
    """The argv of the salloc that this process is a descendant of; empty if there is none."""
    process = os.getpid()
    while process > 1:
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            parent = re.search(
                r"^PPid:\s*(\d+)$", Path(f"/proc/{process}/status").read_text("utf-8", "replace"), re.MULTILINE
            )
        except OSError:
            return []
        if words[0].rpartition("/")[2] == "salloc":
            return words
        process = int(parent[1]) if parent else 0
    return []


def _run_scontrol(environ: Mapping[str, str], *words: str) -> tuple[str, str]:
    """The output of scontrol, and its errors; both are empty if it can't run here."""
    try:
        done = subprocess.run(
            ["scontrol", *words],
            env={**environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "", ""
    return done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
