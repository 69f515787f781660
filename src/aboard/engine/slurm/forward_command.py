"""Runs a command of ours on the batch host of a job, where the conductor and its record are."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime

from aboard.core.slurm.job_state import JobPhase, describe_end
from aboard.core.text.shell_quoting import quote_typed_words
from aboard.diagnoses import AboardError
from aboard.diagnoses.slurm import remote_runs
from aboard.doctor.slurm.slurm_jobs import judge_job
from aboard.engine.slurm.job_runs import JobRun

_OPTIONS = (
    "--overlap",  # with the steps of the run
    *("--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none", "--gpu-bind=none", "--mpi=none"),
    "--quiet",
    "--chdir=/",  # this directory may not exist there
)

_TASK_END = re.compile(rb"srun: error: \S+: task 0: Exited with exit code \d+\s*$")


def forward_command(job_run: JobRun, words: Sequence[str]) -> int:
    """Runs `aboard WORDS` on the batch host, at this terminal if there is one, and returns its exit code."""
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    # srun asks for a second Ctrl-C unless it is told to quit; with a terminal, Ctrl-C goes to the command itself.
    streams = ("--pty",) if terminal else ("--input=none", "--quit-on-interrupt")
    command = _build_command(job_run, words, *streams)
    with subprocess.Popen(command, env=build_step_environment(), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None  # noqa: S101 - a pipe was requested
        for line in process.stderr:
            # The command has said what failed.
            if not _TASK_END.match(line):
                sys.stderr.buffer.write(line)
                sys.stderr.flush()
    return process.returncode


def call_forwarded(job_run: JobRun, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """The exit code and output of `aboard WORDS` on the batch host."""
    command = _build_command(job_run, words, "--input=none")
    return subprocess.run(command, env=build_step_environment(), capture_output=True, text=True, check=False)


def read_forwarded(job_run: JobRun, words: Sequence[str]) -> bytes:
    """What `aboard WORDS` on the batch host writes to its stdout; its stderr is shown here."""
    command = _build_command(job_run, words, "--input=none")
    done = subprocess.run(command, env=build_step_environment(), stdout=subprocess.PIPE, check=False)
    if done.returncode:
        seen = f"`aboard {words[0]}` on {job_run.batch_host} failed with exit code {done.returncode}"
        raise AboardError(remote_runs.FORWARD, seen, job=job_run.job.id, node=job_run.batch_host)
    return done.stdout


def build_absent_error(job_run: JobRun, words: Sequence[str]) -> AboardError:
    """Why a run can't be read from here: its job has not started, or ended elsewhere, or Slurm does not know it."""
    run, status = job_run.run.id, job_run.status
    waiting = judge_job(status, datetime.now()) if status is not None and job_run.is_waiting else None  # noqa: DTZ005 - as Slurm's times
    if waiting is not None:
        return AboardError(waiting.diagnosis, f"{run} has not started: {waiting.seen}", fix=waiting.fix)
    had_nodes = job_run.batch_host or (status is not None and status.nodes)
    ended = judge_job(status, datetime.now()) if status is not None and not had_nodes else None  # noqa: DTZ005 - as above
    if ended is not None:
        return AboardError(ended.diagnosis, f"{run} never started: {ended.seen}", fix=ended.fix)
    if job_run.is_silent:
        seen = f"slurmctld does not reply, and this machine has no record of {run}"
        return AboardError(remote_runs.RECORD_AWAY, seen, "controller")
    if job_run.batch_host:
        how = f" {describe_end(status)}" if status is not None and status.phase is JobPhase.ENDED else " has ended"
        seen = f"job {job_run.job.id}{how}; the record of {run} is on its batch host, {job_run.batch_host}"
        typed = quote_typed_words(words)
        return AboardError(
            remote_runs.RECORD_AWAY, seen, "srun", node=job_run.batch_host, python=sys.executable, typed=typed
        )
    seen = (
        f"Slurm no longer knows job {job_run.job.id}, and this machine has no record of {run}:"
        " how it ended is not known here, because Slurm forgets jobs some minutes after their end"
    )
    return AboardError(remote_runs.RECORD_AWAY, seen, "accounting", job=job_run.job.id)


def build_step(job: int, host: str) -> list[str]:
    """An srun of one task on a node of a job."""
    return ["srun", f"--jobid={job}", f"--nodelist={host}", *_OPTIONS]


def build_step_environment() -> dict[str, str]:
    """Without variables that srun would take as options, such as those of a job that this shell is in."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SRUN_"))}


def _build_command(job_run: JobRun, words: Sequence[str], *streams: str) -> list[str]:
    """The same Aboard as this one, by the path of its interpreter."""
    # Not resolved: a virtual environment's interpreter is a symlink.
    aboard = [sys.executable, "-P", "-m", "aboard", *words]
    return [*build_step(job_run.job.id, job_run.batch_host), *streams, *aboard]
