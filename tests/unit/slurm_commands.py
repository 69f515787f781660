"""Stand-ins for Slurm's commands on the PATH: they print what a test wrote for them, and note how they were called."""

import os
import shlex
from pathlib import Path

import pytest

from aboard.record.run_directory import RunDirectory
from aboard.record.runs import Runs
from aboard.record.slurm_job import read_slurm_job

_PROGRAM = """\
#!/bin/sh
{{ printf '%s' "${{0##*/}}"; for word in "$@"; do printf '\\t%s' "$word"; done; echo; }} >> {calls}
{env}
{body}
"""
# The job's description changes with a file, as it does in Slurm.
_SCONTROL = """\
case "$*" in
  *"show job"*) cat {folder}/job-"$4" 2>/dev/null || {{ echo "slurm_load_jobs error: Invalid job id" >&2; exit 1; }};;
  *"show config"*) echo "KillWait                = 30 sec";;
  *"write batch_script"*) echo "#!/bin/bash";;
esac
"""


class SlurmStandIns:
    """The commands in one folder; `jobs` are what scontrol shows."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        self.put("scontrol", _SCONTROL.format(folder=shlex.quote(str(folder))))
        self.put("scancel", "")
        # All jobs that scontrol knows, and their comments.
        self.put("squeue", f"cat {shlex.quote(str(folder))}/queue 2>/dev/null; true")
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def put(self, name: str, body: str, *, env: str = "") -> None:
        """A command with this body; `env` is a variable whose value is noted."""
        note = f'echo "{env}=${env}" >> {shlex.quote(str(self._calls))}' if env else ""
        path = self.folder / name
        path.write_text(_PROGRAM.format(calls=shlex.quote(str(self._calls)), body=body, env=note))
        path.chmod(0o755)

    def show(self, job: int, fields: str, comment: str | None = None) -> None:
        """Adds a job; without a comment, that of the run that recorded it."""
        if comment is None:
            runs = Runs.of(os.environ).all()
            run = next((run.id for run in runs if (own := read_slurm_job(run)) and own.id == job), "")
            comment = f"tests aboard:{run}" if run else "(null)"
        (self.folder / f"job-{job}").write_text(f"JobId={job} JobName=x {fields} StdOut=/x\n")
        with (self.folder / "queue").open("a") as queue:
            queue.write(f"{job} {comment}\n")

    @property
    def calls(self) -> list[list[str]]:
        """The commands that were called, except scontrol and squeue, which only read."""
        text = self._calls.read_text() if self._calls.exists() else ""
        words = [line.split("\t") for line in text.splitlines()]
        return [each for each in words if each[0] not in ("scontrol", "squeue")]

    @property
    def _calls(self) -> Path:
        return self.folder / "calls"


def make_job_run(name: str, slurm_json: str) -> RunDirectory:
    """A run directory as a login node has it, with this record of its job."""
    runs = Runs.of(os.environ)
    run = runs.open_or_create(name)
    run.slurm_job.write_text(slurm_json)
    return run
