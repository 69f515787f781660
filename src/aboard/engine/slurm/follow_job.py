"""Follows the jobs of a run from a login node, until the last one has ended."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Protocol

from aboard.core.decoding import parse_json, try_decode
from aboard.core.run.run_progress import RunProgress
from aboard.core.slurm.job_state import NO_OUTPUT_CODE, JobPhase, JobStatus
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.core.text.shell_quoting import quote_typed_words
from aboard.diagnoses import AboardError
from aboard.diagnoses.slurm import submission
from aboard.diagnoses.untrusted import encode_text
from aboard.engine.conductor_client import watch_progress
from aboard.engine.slurm.job_runs import find_newest_job
from aboard.engine.slurm.watch_job import JobOutput, stream_step, watch_job
from aboard.lazy_dataclass import dataclass
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import RUN_ID, Runs
from aboard.record.slurm_job import SlurmJob, read_slurm_job

# A run of thousands of ranks is a megabyte.
BETWEEN_SECONDS = 0.5
# A step that ends sooner has not reached the node.
SHORT_SECONDS = 1.0
_LONGEST_LINE = 64 * 1024 * 1024


async def watch_forwarded_progress(status: JobStatus, run: str) -> AsyncIterator[RunProgress]:
    """Yields the run's progress from the batch host of its job, until the conductor or the job ends."""
    # -P: the files of the working directory are not modules of Aboard.
    command = [sys.executable, "-P", "-m", __name__, run]
    rest = b""
    async for data in stream_step(status, command):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            return
        for line in lines[-1:]:
            with suppress(ValueError):
                progress = try_decode(RunProgress, parse_json(line))
                if progress is not None:
                    yield progress


async def relay_progress(run: RunDirectory) -> None:
    """Prints the run's progress until its conductor exits; waits for a conductor that has not started yet."""
    printed = None
    while printed is None:
        with suppress(AboardError):
            async for progress in watch_progress(run):
                if printed is None or monotonic() - printed >= BETWEEN_SECONDS or progress.finished:
                    printed = monotonic()
                    sys.stdout.write(json.dumps(asdict(progress), default=encode_text) + "\n")
                    sys.stdout.flush()
        await asyncio.sleep(BETWEEN_SECONDS)


# What bash returns for a program that it can't start, and the script for a directory that is missing. It names the
# copy of the script that Slurm made, and not one of the user.
_START_FAILURES = {126: b"exec: ", 127: b"exec: ", 3: b"cd: "}
_START_FAILURE = rb"/slurm_script: .{0,20}?[0-9]+ ?: "


class JobViewer(Protocol):
    """Shows a job's state and its output, and on a terminal the run's progress."""

    @property
    def shows_progress(self) -> bool: ...

    def show(self, status: JobStatus) -> None: ...

    def update(self, progress: RunProgress) -> None: ...

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


async def follow_run(run: RunDirectory, job: SlurmJob, viewer: JobViewer) -> FollowedJob:
    """Follows a job, and each further job that continues the same run."""
    while True:
        followed = await follow_job(run.id, job.id, viewer)
        newest = await find_newest_job(run, read_slurm_job(run) or job)
        if newest.id <= job.id:
            return followed
        job = newest


def refuse_failed_start(followed: FollowedJob, settings: SlurmSettings) -> None:
    """Explains a script that ended before Aboard started: the node lacks its directory or its Python."""
    mark = _START_FAILURES.get(followed.exit_code)
    is_said = mark is not None and re.search(_START_FAILURE + mark, followed.last_output)
    if followed.exit_code != NO_OUTPUT_CODE and not is_said:
        return
    partition = [] if settings.partition is None else [f"--partition={settings.partition}"]
    srun = quote_typed_words(["srun", *partition])
    seen = f"job {followed.id} ended before Aboard started"
    raise AboardError(submission.SCRIPT_START, seen, srun=srun, directory=Path.cwd(), python=sys.executable)


async def follow_job(run: str, job: int, viewer: JobViewer) -> FollowedJob:
    """Shows the job's state, its output and the run's progress until the job has ended."""
    output = JobOutput(on_bytes=viewer.write)
    wake = asyncio.Event()
    streaming: asyncio.Task[None] | None = None
    last: JobStatus | None = None
    try:
        async for status in watch_job(job, wake):
            viewer.show(status)
            last = status
            if streaming is not None and streaming.done():
                # The steps ended: with the job, or because srun can't reach the node.
                streaming.result()
                streaming = None
                output.read_rest(status)
            if streaming is None and status.phase is JobPhase.RUNNING and status.batch_host:
                streaming = asyncio.create_task(_stream(output, run, status, viewer, wake))
    finally:
        await _cancel_task(streaming)
    if last is not None:
        output.read_rest(last)
    return FollowedJob(id=job, status=last, last_output=output.last)


async def _stream(output: JobOutput, run: str, status: JobStatus, viewer: JobViewer, wake: asyncio.Event) -> None:
    """Delivers the output, and beside it the progress, to a viewer that shows it; then wakes, as the job has ended."""
    began = monotonic()
    progress = asyncio.create_task(_relay_progress(run, status, viewer)) if viewer.shows_progress else None
    try:
        await output.stream(status)
    except BrokenPipeError:
        wake.set()
        raise
    finally:
        await _cancel_task(progress)
    # A step that can't reach the node ends at once, and is no reason to ask slurmctld.
    if monotonic() - began > SHORT_SECONDS:
        wake.set()


async def _cancel_task(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _relay_progress(run: str, status: JobStatus, viewer: JobViewer) -> None:
    async for progress in watch_forwarded_progress(status, run):
        viewer.update(progress)


if __name__ == "__main__":
    _run_id = sys.argv[1]
    if not RUN_ID.fullmatch(_run_id):
        sys.exit("this is not the id of a run")
    asyncio.run(relay_progress(Runs.of(os.environ).open_run(_run_id)))
