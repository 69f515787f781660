"""The conductor's side of a Slurm job: its record, and the reason and time left when Slurm ends the job."""

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from aboard.core.slurm.batch_script import mark_unmonitored
from aboard.core.slurm.job_ending import (
    JobConditions,
    JobEnding,
    classify_ending,
    is_preempted,
    parse_kill_wait,
    parse_preemption,
    read_partition,
)
from aboard.record.run_directory import RunDirectory
from aboard.record.slurm_job import SlurmJob, read_slurm_job, write_slurm_job
from aboard.transport.slurm.slurm_commands import run_slurm_command
from aboard.transport.slurm.step_notices import find_cancel_notice

_LOG = logging.getLogger(__name__)
# Tells a further job of a run which one it is, and the last saved step: "RUN 2 400".
CONTINUED = "ABOARD_CONTINUED"
_CONTINUED = re.compile(r"(\S+) (\d{1,6}) (\d{1,18})")
# Less than the least sensible KillWait; without a reply, the ranks are stopped all the same.
ASK_SECONDS = 1.5
# How often a job asks whether it is being preempted, as a share of the notice that its partition gives.
NOTICE_SHARE = 0.2
LEAST_POLL_SECONDS = 1.0


def record_own_job(run: RunDirectory, environ: Mapping[str, str]) -> SlurmJob | None:
    """Records the job that this process is in, and on which of its nodes; None outside of a job.

    A conductor of `salloc` may run on the login node: it has no batch host.
    """
    if not environ.get("SLURM_JOB_ID", "").isdecimal():
        return None
    known = read_slurm_job(run) or SlurmJob(id=0)
    continued = _CONTINUED.fullmatch(environ.get(CONTINUED, ""))
    # Jobs of other runs may inherit the variable.
    if continued is not None and continued[1] == run.id:
        known = replace(known, attempt=int(continued[2]), saved_step=int(continued[3]))
    job = replace(known, id=int(environ["SLURM_JOB_ID"]), batch_host=environ.get("SLURMD_NODENAME", ""))
    write_slurm_job(run, job)
    return job


class JobWatch:
    """Knows how Slurm ends this job; `ending` is the first sign of it."""

    def __init__(self, job: SlurmJob, environ: Mapping[str, str]) -> None:
        self.job = job
        self.ending: JobEnding | None = None
        restarts = environ.get("SLURM_RESTART_COUNT", "")
        self._conditions = JobConditions(restarts=int(restarts) if restarts.isdecimal() else 0)

    async def wait_for_notice(self) -> JobEnding:
        """Returns when Slurm gives notice of a preemption or cancels a step of ours.

        Only steps get a signal then, and a conductor in salloc's shell never does. Slurm is asked repeatedly only in a
        partition that gives notice of a preemption.
        """
        await self._read_conditions()
        grace = self._conditions.preempt_grace
        is_polling = self._conditions.preempt_mode != "OFF" and grace
        poll = max(LEAST_POLL_SECONDS, grace * NOTICE_SHARE) if is_polling else None
        while True:
            cancelled = await find_cancel_notice().wait(poll)
            if is_preempted(shown := await self._show_job()) or cancelled:
                return self._classify(shown, "SIGTERM for its step")

    async def mark_unmonitored(self) -> None:
        """Notes at the job that no ranks were watched: without shared homes, a login node knows only its exit code."""
        job = str(self.job.id)
        said = await run_slurm_command(["squeue", "--noheader", f"--jobs={job}", "--format=%k"], seconds=ASK_SECONDS)
        if comment := mark_unmonitored(said.stdout.strip()):
            await run_slurm_command(["scontrol", "update", f"JobId={job}", f"Comment={comment}"], seconds=ASK_SECONDS)

    async def explain_signal(self, signal: str) -> JobEnding:
        """Why this process got a signal."""
        return self._classify(await self._show_job(), signal)

    def _classify(self, shown: str, signal: str) -> JobEnding:
        now = datetime.now()  # noqa: DTZ005 - Slurm's times are local
        if self.ending is None:
            notice = find_cancel_notice().line
            self.ending = classify_ending(self.job.id, shown, signal, now, self._conditions, notice)
            _LOG.info("job %d ends after %s: %s; Slurm said: %s", self.job.id, signal, self.ending.why, notice)
        return self.ending

    async def _read_conditions(self) -> None:
        config = await run_slurm_command(["scontrol", "show", "config"])
        self._conditions = replace(self._conditions, kill_wait=parse_kill_wait(config.stdout))
        partition = read_partition(await self._show_job())
        if partition:
            shown = await run_slurm_command(["scontrol", "show", "partition", partition])
            mode, grace = parse_preemption(shown.stdout)
            self._conditions = replace(self._conditions, preempt_mode=mode, preempt_grace=grace)

    async def _show_job(self) -> str:
        command = ["scontrol", "--oneliner", "show", "job", str(self.job.id)]
        return (await run_slurm_command(command, seconds=ASK_SECONDS)).stdout
