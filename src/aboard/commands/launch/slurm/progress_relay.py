"""The live progress of a run, for a login node: this module runs on the batch host and prints it as JSON lines.

It connects to the conductor's socket, which no other machine can.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from time import monotonic

from aboard.commands.launch.slurm.watch_job import stream_step
from aboard.commands.shared.conductor_client import watch_progress
from aboard.core.decoding import try_decode
from aboard.core.run.run_progress import RunProgress
from aboard.core.slurm.job_state import JobStatus
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import encode_text
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import RUN_ID, Runs

# A run of thousands of ranks is a megabyte.
BETWEEN_SECONDS = 0.5
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
                progress = try_decode(RunProgress, json.loads(line))
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


if __name__ == "__main__":
    _run_id = sys.argv[1]
    if not RUN_ID.fullmatch(_run_id):
        sys.exit("this is not the id of a run")
    asyncio.run(relay_progress(Runs.of(os.environ).open_run(_run_id)))
