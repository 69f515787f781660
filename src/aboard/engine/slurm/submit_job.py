"""Submits a batch script, and says what to change if Slurm refuses it."""

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom

from aboard.config.allowed_files import list_confirmed_digests
from aboard.config.this_machine import find_node_python
from aboard.core.slurm.batch_script import (
    BatchCommand,
    describe_missing_cores,
    describe_written_secret,
    format_batch_script,
    list_overriding_variables,
)
from aboard.core.slurm.conductor_command import build_conductor_command
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.diagnoses import AboardError
from aboard.diagnoses.slurm import submission
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass
from aboard.record.run_directory import PRIVATE_FILE, RunDirectory
from aboard.record.runs import Runs
from aboard.record.slurm_job import SlurmJob, write_slurm_job
from aboard.transport.slurm.slurm_commands import SlurmOutput, run_slurm_command

_ACCEPTED = re.compile(r"^(\d+)(?:;\S+)?$", re.MULTILINE)
_PREFIX = re.compile(r"^(sbatch: )?(error: |allocation failure: )?(Batch job submission failed: )?")
# The first that matches what sbatch writes, and the variant of the fix.
_REFUSALS = (
    ("there is no sbatch", "missing"),
    ("did not end within|Unable to contact slurm controller|Socket timed out|Connection refused", "controller"),
    ("(?i)invalid partition|partition .{0,200}(required|configuration)", "partition"),
    ("(?i)invalid account", "account"),
    ("(?i)qos", "qos"),
    ("(?i)time limit", "time"),
    (
        "(?i)node configuration|node count|more processors|not available|invalid feature|gres|memory specification",
        "nodes",
    ),
    ("(?i)unrecognized option|invalid option|invalid argument|invalid .{0,100} specification", "option"),
)


@dataclass(frozen=True, kw_only=True)
class BatchScript:
    """The text of a script, and the secrets of its command by name, which travel in the environment of sbatch."""

    text: str
    secrets: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class SubmittedRun:
    """A run that was submitted as a job, and notes for the user."""

    run: RunDirectory
    job: SlurmJob
    notes: tuple[str | None, ...] = ()


def format_script(
    settings: SlurmSettings, argv: Sequence[str], *, name: str, run: str | None = None, resubmits: int = 0
) -> BatchScript:
    """The script that runs the typed command with this Python, in this directory."""
    allowed = list_confirmed_digests(os.environ)
    command = build_conductor_command(argv, run=run, resubmits=resubmits, allowed=allowed)
    state = os.environ.get("XDG_STATE_HOME", "")
    batch = BatchCommand(
        # -P: the files of the working directory are not modules of Aboard.
        argv=[find_node_python(os.environ), "-P", "-m", "aboard", *command.words],
        directory=str(Path.cwd()),
        exports={"XDG_STATE_HOME": state} if state.startswith("/") else {},
        secrets=tuple(command.secrets),
    )
    return BatchScript(text=format_batch_script(settings, batch, name=name, run=run), secrets=command.secrets)


async def check_submission(settings: SlurmSettings, argv: Sequence[str]) -> str | None:
    """Asks Slurm whether it would accept the typed command as a job; see `check_request`."""
    return await check_request(format_script(settings, argv, name="aboard-test").text, os.environ)


async def submit_run(settings: SlurmSettings, argv: Sequence[str]) -> SubmittedRun:
    """Submits the typed command as a new run; nothing is left of a run that Slurm refuses."""
    runs = Runs.of(os.environ)
    run = runs.create(datetime.now(UTC).astimezone(), SystemRandom())
    try:
        script = format_script(settings, argv, name=run.id, run=run.id, resubmits=settings.resubmit_limit)
        job = await submit_run_script(run, script.text, {**os.environ, **script.secrets})
    except AboardError:
        runs.remove(run)
        raise
    notes = (describe_written_secret(script.text), await find_request_note(settings))
    return SubmittedRun(run=run, job=job, notes=notes)


async def check_request(script: str, environ: Mapping[str, str]) -> str | None:
    """Asks Slurm about a script without submitting it: raises if it would be refused.

    Returns a note about a request that no node can fulfil now, such as while nodes are down.
    """
    said = await run_slurm_command(["sbatch", "--test-only"], stdin=script, env=_drop_overrides(script, environ))
    if not said.code:
        return None
    refusal = _build_refusal(said, Path("job.sh"))
    if refusal.fix.variant in ("nodes", "other"):
        return f"{refusal.seen}; {refusal.fix}"
    raise refusal


def write_batch_script(run: RunDirectory, text: str) -> Path:
    """Writes the script into the run directory, readable only by the user."""
    path = run.batch_script
    path.touch(mode=PRIVATE_FILE)
    path.write_text(text, "utf-8", "surrogateescape")
    return path


async def find_request_note(settings: SlurmSettings) -> str | None:
    """What the request probably misses, given this cluster's configuration."""
    partitions = await run_slurm_command(["scontrol", "--oneliner", "show", "partition"])
    config = await run_slurm_command(["scontrol", "show", "config"])
    return describe_missing_cores(settings, partitions.stdout, config.stdout)


async def submit_run_script(run: RunDirectory, script: str, environ: Mapping[str, str]) -> SlurmJob:
    """Submits a new run from the current directory, and records its job."""
    path = write_batch_script(run, script)
    job = SlurmJob(id=await submit_script(path, environ), script=str(path))
    write_slurm_job(run, job)
    return job


async def submit_script(script: Path, environ: Mapping[str, str], options: Sequence[str] = ()) -> int:
    """The id of the new job; `options` come before the script's own, and `environ` is what it exports."""
    text = await asyncio.to_thread(script.read_text, "utf-8", "surrogateescape")
    said = await run_slurm_command(["sbatch", "--parsable", *options, str(script)], env=_drop_overrides(text, environ))
    found = _ACCEPTED.search(said.stdout)
    if said.code or found is None:
        raise _build_refusal(said, script)
    return int(found[1])


def _drop_overrides(script: str, environ: Mapping[str, str]) -> dict[str, str]:
    dropped = set(list_overriding_variables(script))
    return {name: value for name, value in environ.items() if name not in dropped}


def _build_refusal(output: SlurmOutput, script: Path) -> AboardError:
    text = output.stderr.strip() or output.stdout.strip()
    variant = next((variant for pattern, variant in _REFUSALS if re.search(pattern, text)), "other")
    lines = [_PREFIX.sub("", line) for line in text.splitlines()]
    seen = Untrusted("; ".join(lines)).visible(500) or f"sbatch failed with exit code {output.code}"
    if variant == "other":
        return AboardError(submission.SUBMIT, seen, variant, script=script)
    return AboardError(submission.SUBMIT, seen, variant)
