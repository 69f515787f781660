"""Following a job, with stand-ins for Slurm's commands; srun runs its command on this machine."""

import asyncio
import gc
import io
import sys
from collections.abc import Callable
from dataclasses import field
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console
from slurm_commands import SlurmStandIns

from aboard.commands.launch.view.job_view import JobView
from aboard.core.run.run_progress import RunProgress
from aboard.core.slurm.job_state import JobStatus
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.diagnoses import AboardError
from aboard.engine.slurm import watch_job
from aboard.engine.slurm.follow_job import FollowedJob, follow_run, refuse_failed_start
from aboard.engine.slurm.watch_job import FIRST_POLL_SECONDS, LONGEST_POLL_SECONDS, POLL_GROWTH
from aboard.lazy_dataclass import dataclass
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import Runs
from aboard.record.slurm_job import SlurmJob, write_slurm_job

RUN = "20261116-1930-brave-otter"
# Runs the words from the command on, as the step would on the batch host.
LOCAL_SRUN = 'while [ "$1" != tail ]; do shift; done; exec "$@"'
SECONDS = 60


@dataclass(kw_only=True)
class Viewer:
    """Collects what is shown; `on_state` and `on_output` let a test move the job on."""

    shows_progress: bool = False
    states: list[str] = field(default_factory=list)
    output: bytes = b""
    on_state: Callable[[JobStatus], None] = lambda _status: None
    on_output: Callable[[bytes], None] = lambda _output: None

    def show(self, status: JobStatus) -> None:
        self.states.append(f"{status.id} {status.state}")
        self.on_state(status)

    def update(self, roster: RunProgress) -> None:
        raise AssertionError

    def write(self, data: bytes) -> None:
        self.output += data
        self.on_output(self.output)


class Pipe(io.StringIO):
    """One that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmStandIns:
    stand_ins = SlurmStandIns(tmp_path / "bin", monkeypatch)
    stand_ins.put("srun", LOCAL_SRUN)
    return stand_ins


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return Runs(tmp_path / "runs").open_or_create(RUN)


def show(slurm: SlurmStandIns, job: int, state: str, *, code: str = "0:0") -> None:
    """As scontrol does; the output of each job is a file of its own."""
    fields = f"JobState={state} Reason=None ExitCode={code} BatchHost=n1 StdOut={slurm.folder}/%j.out"
    (slurm.folder / "new").write_text(f"JobId={job} JobName=x {fields}\n")
    (slurm.folder / "new").rename(slurm.folder / f"job-{job}")


def follow(run: RunDirectory, viewer: Viewer, job: int = 12) -> FollowedJob:
    return asyncio.run(asyncio.wait_for(follow_run(run, SlurmJob(id=job, script="x"), viewer), SECONDS))


@pytest.mark.ci
def test_a_job_is_followed_to_its_end(slurm: SlurmStandIns, run: RunDirectory) -> None:
    """Its output comes while it runs, then what it wrote last; its exit code is the script's."""
    file = slurm.folder / "12.out"
    show(slurm, 12, "PENDING")

    def begin(status: JobStatus) -> None:
        if status.state == "PENDING":
            file.write_text("first\n")
            show(slurm, 12, "RUNNING")

    def end(output: bytes) -> None:
        if output == b"first\n":
            show(slurm, 12, "FAILED", code="7:0")
            # The step ends with the job, before it has read this.
            slurm.put("srun", "exit 1")
            with file.open("a") as more:
                more.write("last\n")

    viewer = Viewer(on_state=begin, on_output=end)
    followed = follow(run, viewer)
    assert list(dict.fromkeys(viewer.states)) == ["12 PENDING", "12 RUNNING", "12 FAILED"]
    assert viewer.output == b"first\nlast\n"
    assert (followed.exit_code, followed.last_output) == (7, b"first\nlast\n")


@pytest.mark.ci
def test_slurmctld_is_asked_once_in_15_seconds(
    slurm: SlurmStandIns, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Soon after a change, and then less often; a step that can't reach the node asks no second time."""
    pause, asked, seconds = FIRST_POLL_SECONDS, 0, 0.0
    while seconds < 600:
        pause, asked, seconds = min(pause * POLL_GROWTH, LONGEST_POLL_SECONDS), asked + 1, seconds + pause
    assert (pause, asked) == (15.0, 45)
    monkeypatch.setattr(watch_job, "FIRST_POLL_SECONDS", 0.02)
    slurm.put("srun", "exit 1")
    show(slurm, 12, "RUNNING")

    def end(_status: JobStatus) -> None:
        if len(slurm.calls) > 3:
            show(slurm, 12, "COMPLETED")

    viewer = Viewer(on_state=end)
    follow(run, viewer)
    assert viewer.states.count("12 RUNNING") <= len(slurm.calls) + 1


def test_output_is_read_here_if_srun_cannot_reach_the_node(slurm: SlurmStandIns, run: RunDirectory) -> None:
    """As on clusters where nodes can't connect to the login node, but share its file systems."""
    slurm.put("srun", "exit 1")
    (slurm.folder / "12.out").write_text("shared\n")
    show(slurm, 12, "RUNNING")
    viewer = Viewer(on_output=lambda _output: show(slurm, 12, "COMPLETED"))
    assert follow(run, viewer).exit_code == 0
    assert viewer.output == b"shared\n"


@pytest.mark.parametrize(
    ("code", "last", "failed"),
    [
        (127, b"/var/spool/slurmd/job00055/slurm_script: line 27: exec: /opt/python: not found\n", True),
        (3, b"/var/spool/slurmd/job00055/slurm_script: line 24: cd: /shared/x: No such file\n", True),
        # What ranks and scripts print.
        (127, b"[ranks 0-3] bash: line 3: exec: python: not found\ndone: failed after 0.8 s\n", False),
        (3, b"[script on n1 stderr] job.sh: line 3: cd: /data: No such file\nerror [paste-flag]\n", False),
    ],
)
def test_only_the_batch_script_itself_tells_that_aboard_did_not_start(code: int, last: bytes, *, failed: bool) -> None:
    """A run whose ranks print the same words has started, and keeps its own exit code."""
    ended = FollowedJob(id=55, status=JobStatus(id=55, state="FAILED", exit_code=code), last_output=last)
    if failed:
        with pytest.raises(AboardError, match="job 55 ended before Aboard started"):
            refuse_failed_start(ended, SlurmSettings(nodes=2))
    else:
        refuse_failed_start(ended, SlurmSettings(nodes=2))


def test_a_closed_pipe_ends_the_view_without_a_traceback(
    slurm: SlurmStandIns, run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`aboard launch … | head`: rich would end the process by SystemExit within a task, which asyncio reports."""
    console = Console(file=Pipe())
    # rich's own, since 13.8, gives away the stdout of this process.
    monkeypatch.setattr(console, "on_broken_pipe", lambda: sys.exit(1), raising=False)
    view = JobView(console, RUN, clock=datetime.now)
    (slurm.folder / "12.out").write_text("line\n")
    show(slurm, 12, "RUNNING")
    with pytest.raises(BrokenPipeError):
        follow(run, Viewer(on_output=view.write))
    gc.collect()
    assert not caplog.records


def test_the_job_that_continues_a_run_is_followed_too(slurm: SlurmStandIns, run: RunDirectory) -> None:
    """The exit code is the last job's; a job that Slurm ended has one too."""
    write_slurm_job(run, SlurmJob(id=13, attempt=2, script="x"))
    show(slurm, 12, "PREEMPTED")
    show(slurm, 13, "COMPLETED")
    viewer = Viewer()
    assert follow(run, viewer).exit_code == 0
    assert viewer.states == ["12 PREEMPTED", "13 COMPLETED"]
    show(slurm, 13, "PREEMPTED")
    assert follow(run, Viewer()).exit_code == 1
