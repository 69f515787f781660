"""Watches a job from a login node: its state, and the output of its script through a step on the batch host."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path

from aboard.core.slurm.job_state import JobPhase, JobStatus
from aboard.engine.slurm.forward_command import build_step, build_step_environment
from aboard.engine.slurm.job_runs import ask_job_status
from aboard.lazy_dataclass import dataclass

# Between two questions: a job that starts is noticed soon, and one that waits for hours costs slurmctld little.
FIRST_POLL_SECONDS = 1.0
LONGEST_POLL_SECONDS = 15.0
POLL_GROWTH = 1.5
# Questions without an answer, for as long as slurmctld may restart.
_MAX_SILENT = 12
# tail looks this often for more output where it has no notice of it, which includes overlays and NFS.
_TAIL_SECONDS = 0.1
# How long a conductor's last lines may take to a viewer that does not see the file itself.
VIEWER_SECONDS = 0.5
_CHUNK = 64 * 1024
_KEPT_BYTES = 2048


async def watch_job(job: int, wake: asyncio.Event) -> AsyncIterator[JobStatus]:
    """Yields the state of the job repeatedly until it has ended, or until Slurm no longer knows it.

    `wake` asks Slurm at once.
    """
    pause, silent, known = FIRST_POLL_SECONDS, 0, ""
    while silent <= _MAX_SILENT:
        status = await ask_job_status(job)
        if status is None:
            silent += 1
        else:
            silent = 0
            yield status
            if status.phase is JobPhase.ENDED:
                return
            pause = FIRST_POLL_SECONDS if status.state != known else min(pause * POLL_GROWTH, LONGEST_POLL_SECONDS)
            known = status.state
        with suppress(TimeoutError):
            await asyncio.wait_for(wake.wait(), pause)
            known = ""  # something has happened: look closely
        wake.clear()


@dataclass(kw_only=True)
class JobOutput:
    """The output of a job's script, delivered once; `seen` counts the bytes, `last` are the last of them.

    A step on the batch host reads the file, because homes may not be shared and NFS shows new bytes late. What the
    script wrote last, when the step ended with the job, comes from the file if it is visible here.
    """

    on_bytes: Callable[[bytes], None]
    seen: int = 0
    last: bytes = b""

    async def stream(self, status: JobStatus) -> None:
        """Delivers the output while the job runs."""
        tail = ["tail", "-c", f"+{self.seen + 1}", f"-s{_TAIL_SECONDS}", "-F", find_output(status)]
        async with aclosing(stream_step(status, tail)) as parts:
            async for data in parts:
                self._deliver(data)

    def read_rest(self, status: JobStatus) -> None:
        """Delivers what was written since, if this machine sees the file."""
        with suppress(OSError), Path(find_output(status)).open("rb") as file:
            file.seek(self.seen)
            while data := file.read(_CHUNK):
                self._deliver(data)

    def _deliver(self, data: bytes) -> None:
        self.seen += len(data)
        self.last = (self.last + data)[-_KEPT_BYTES:]
        self.on_bytes(data)


async def stream_step(status: JobStatus, command: Sequence[str]) -> AsyncGenerator[bytes, None]:
    """What a command on the batch host writes to its stdout, until it or the job ends."""
    try:
        process = await asyncio.create_subprocess_exec(
            *build_step(status.id, status.batch_host),
            "--input=none",
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            # Ctrl-C at this terminal is for us; srun would ask for a second one.
            start_new_session=True,
            env=build_step_environment(),
        )
    except OSError:  # there is no srun here
        return
    assert process.stdout is not None  # noqa: S101 - a pipe was requested
    ended = False
    try:
        while data := await process.stdout.read(_CHUNK):
            yield data
        ended = True
    finally:
        if not ended:
            with suppress(ProcessLookupError):
                process.terminate()
        await process.wait()


def find_output(status: JobStatus) -> str:
    """The path of the job's output; some versions of Slurm leave the job's id as a pattern."""
    return status.output.raw().replace("%j", str(status.id))
