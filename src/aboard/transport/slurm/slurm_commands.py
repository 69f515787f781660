"""Runs one of Slurm's commands and returns its output."""

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence

from aboard.lazy_dataclass import dataclass

# slurmctld answers within a second; a client that cannot reach it tries for MessageTimeout seconds, 10 by default.
COMMAND_SECONDS = 30.0
# As slurm.conf(5) has it.
SLURMD_PORT = 6818
PORT_SECONDS = 5.0
_NOT_FOUND = 127
_TIMED_OUT = 124


@dataclass(frozen=True, kw_only=True)
class SlurmOutput:
    """The exit code and output of a command; 127 if it is not installed, 124 if it did not end in time."""

    code: int
    stdout: str = ""
    stderr: str = ""


async def run_slurm_command(
    argv: Sequence[str], *, stdin: str = "", env: Mapping[str, str] | None = None, seconds: float = COMMAND_SECONDS
) -> SlurmOutput:
    """Runs squeue, scontrol, sinfo, sbatch or scancel, in English and with ISO times."""
    if shutil.which(argv[0]) is None:
        return SlurmOutput(code=_NOT_FOUND, stderr=f"there is no {argv[0]} on this machine")
    # What sbatch gets, the job's ranks get.
    own = {} if argv[0] == "sbatch" else {"LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**(os.environ if env is None else env), **own},
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(stdin.encode()), seconds)
    except TimeoutError:
        return SlurmOutput(code=_TIMED_OUT, stderr=f"{argv[0]} did not end within {seconds:g} s")
    finally:
        # Also when we are cancelled.
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return SlurmOutput(
        code=process.returncode or 0, stdout=out.decode("utf-8", "replace"), stderr=err.decode("utf-8", "replace")
    )


async def find_slurmd_port() -> int:
    """The port at which slurmd listens on every node; Slurm's default if scontrol doesn't say."""
    shown = await run_slurm_command(["scontrol", "show", "config"], seconds=PORT_SECONDS)
    found = re.search(r"^SlurmdPort\s*=\s*(\d{1,5})\s*$", shown.stdout, re.MULTILINE)
    return int(found[1]) if found else SLURMD_PORT
