"""Follows the jobs of a run from a login node, until the last one has ended."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from aboard.core.slurm.job_state import JobPhase, JobStatus
from aboard.flows.slurm.watch_job import JobOutput, watch_job
from aboard.lazy_dataclass import dataclass
from aboard.record.run_directory import RunDirectory
from aboard.record.slurm_job import read_slurm_job


class JobViewer(Protocol):
    """Shows a job's state and its output."""

    def show(self, status: JobStatus) -> None: ...

    def write(self, data: bytes) -> None: ...


@dataclass(frozen=True, kw_only=True)
class FollowedJob:
    """The last known state of a job, None if Slurm never reported it, and the end of its output."""

    id: int
    status: JobStatus | None
    last_output: bytes = b""

    @property
    def exit_code(self) -> int:
        """The script's exit code; 1 for a job that Slurm ended, or whose end is unknown."""
        if self.status is not None and self.status.state == "COMPLETED":
            return 0
        return (self.status and self.status.exit_code) or 1


async def follow_run(run: RunDirectory, job: int, viewer: JobViewer) -> FollowedJob:
    """Follows a job, and each further job that continues the same run."""
    while True:
        followed = await follow_job(job, viewer)
        recorded = read_slurm_job(run)
        if recorded is None or recorded.id <= job:
            return followed
        job = recorded.id


async def follow_job(job: int, viewer: JobViewer) -> FollowedJob:
    """Shows the job's state and its output until it has ended."""
    output = JobOutput(on_bytes=viewer.write)
    wake = asyncio.Event()
    streaming: asyncio.Task[None] | None = None
    last: JobStatus | None = None
    try:
        async for status in watch_job(job, wake):
            viewer.show(status)
            last = status
            if streaming is not None and streaming.done():
                # The step ended: with the job, or because srun can't reach the node. The next poll tries again.
                streaming = None
                output.read_rest(status)
            elif streaming is None and status.phase is JobPhase.RUNNING and status.batch_host:
                streaming = _start(output, status, wake.set)
    finally:
        if streaming is not None:
            streaming.cancel()
            with suppress(asyncio.CancelledError):
                await streaming
    if last is not None:
        output.read_rest(last)
    return FollowedJob(id=job, status=last, last_output=output.last)


def _start(output: JobOutput, status: JobStatus, on_end: Callable[[], None]) -> "asyncio.Task[None]":
    task = asyncio.create_task(output.stream(status))
    task.add_done_callback(lambda _task: on_end())
    return task
