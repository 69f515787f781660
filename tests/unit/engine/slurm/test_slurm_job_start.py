"""What a run says about its Slurm job before it starts, and when a requeued job refuses to start over."""

import json
import os
from pathlib import Path

import pytest
from typed_commands import aboard

from aboard.config.slurm_allocation import describe_node_failure
from aboard.core.slurm.allocation import AllocatedNode, SlurmAllocation
from aboard.core.slurm.no_kill import describe_missing_no_kill, find_no_kill
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.diagnoses import AboardError, InputError, format_shell
from aboard.engine.slurm.job_start import check_job_size, check_job_start
from aboard.record.run_directory import RunDirectory
from aboard.record.runs import Runs
from aboard.record.slurm_job import SlurmJob, write_slurm_job

COMMAND = format_shell("aboard launch -- train.py")
RUN = "20250102-0304-calm-otter"


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """An empty state directory, and a scontrol that shows a batch script with --no-kill."""
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/script\n")
    program.chmod(0o755)
    write_script(tmp_path, "#SBATCH --no-kill")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return Runs(tmp_path / "aboard" / "runs")


def write_script(folder: Path, *directives: str) -> None:
    (folder / "script").write_text("\n".join(["#!/bin/bash", *directives, "aboard launch -- train.py"]))


def job(*gpus: int | None, restarts: int = 0) -> SlurmAllocation:
    nodes = tuple(AllocatedNode(name=f"n{index}", gpus=count) for index, count in enumerate(gpus, 1))
    return SlurmAllocation(job=7, nodes=nodes, restarts=restarts)


def record(runs: Runs, *, id: int = 7, command: str = COMMAND) -> RunDirectory:  # noqa: A002 - Slurm's word
    """A run that got as far as a plan."""
    run = runs.open_or_create(RUN)
    write_slurm_job(run, SlurmJob(id=id))
    run.plan.write_text(json.dumps({"command": command}))
    return run


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("#!/bin/sh\n#SBATCH -N2 --no-kill\nsrun x", True),
        ("#!/bin/sh\n#SBATCH -k\n", True),
        ("#!/bin/sh\n# a comment\n\n#SBATCH --nodes=2\t--no-kill --time=1\n", True),
        ("#!/bin/sh\n#SBATCH --no-kill=off\n", False),
        ("#!/bin/sh\n#SBATCH --comment=--no-killer\n", False),
        ("#!/bin/sh\n##SBATCH --no-kill\n", False),
        ("#!/bin/sh\n#SBATCH -N2\necho\n#SBATCH --no-kill\n", False),
        (None, None),
    ],
)
def test_no_kill_of_a_batch_script(script: str | None, found: bool | None) -> None:  # noqa: FBT001 - a table
    """As sbatch reads the script: only the lines before the first command count."""
    assert find_no_kill({}, script=script) is found


def test_no_kill_elsewhere() -> None:
    """The arguments of salloc decide, and the variables that stand for the option."""
    assert find_no_kill({}, salloc=["salloc", "-N2", "--no-kill", "bash"]) is True
    assert find_no_kill({}, salloc=["salloc", "-N2", "bash"]) is False
    assert find_no_kill({"SBATCH_NO_KILL": ""}, script="#!/bin/sh\n") is True


def test_a_job_that_one_failed_node_ends(tmp_path: Path) -> None:
    """The note names the line to add; a job of one node, or with the option, gets none."""
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert describe_node_failure(env, job(2, 2)) is None
    write_script(tmp_path, "#SBATCH -N2")
    note = describe_node_failure(env, job(2, 2))
    assert note == (
        "unless sbatch got --no-kill on its command line, Slurm ends job 7 when one of its nodes fails;"
        " add to the script: #SBATCH --no-kill"
    )
    assert describe_node_failure(env, job(2)) is None
    (tmp_path / "script").write_text("")
    note = describe_node_failure(env, job(2, 2))
    assert note == "unless the job was requested with --no-kill, Slurm ends job 7 when one of its nodes fails"


def test_a_run_that_is_to_outlive_its_nodes_is_told_what_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job without --no-kill, with the line to type; and always the node of its conductor."""
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    write_script(tmp_path)
    assert describe_node_failure(env, job(2, 2), recovers=True) == (
        "unless sbatch got --no-kill on its command line, Slurm ends job 7 when one of its nodes fails, and the run"
        " with it: it is not restarted; add to the script: #SBATCH --no-kill"
    )
    assert describe_missing_no_kill(job(2, 2), no_kill=False, batch=False, recovers=True) == (
        "Slurm ends job 7 when one of its nodes fails, and the run with it: it is not restarted;"
        " ask for a job with: salloc --no-kill"
    )
    write_script(tmp_path, "#SBATCH --no-kill")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    assert check_job_start(job(2, 2), COMMAND, os.environ, recovers=True) == (
        "the run is controlled from n1: if that node fails, Slurm ends job 7",
    )
    assert check_job_start(job(2, 2), COMMAND, os.environ) == ()


def test_the_first_start_of_a_job(runs: Runs) -> None:
    """There is nothing to say, not even after another run in the same job."""
    record(runs)
    assert check_job_start(job(2, 2), COMMAND, os.environ) == ()


def test_nodes_without_gpus() -> None:
    """A node where the job has no GPUs is named: no ranks run there."""
    assert check_job_start(job(2, 0, 0), COMMAND, os.environ) == ("job 7 has no GPUs on n[2-3]: no ranks run there",)
    assert check_job_start(job(0, 0), COMMAND, os.environ) == ()


def test_a_requeued_launch_is_refused(runs: Runs) -> None:
    """A program that had started would start over; the fix tells Slurm whether it may."""
    record(runs)
    with pytest.raises(AboardError) as caught:
        check_job_start(job(2, 2, restarts=1), COMMAND, os.environ)
    assert caught.value.code == "slurm-requeued"
    assert (
        caught.value.seen
        == f"Slurm requeued job 7, and run {RUN} had started before: the same command would start over"
    )
    first, second = caught.value.fix.splitlines()
    assert first.startswith("#SBATCH --requeue    # in the batch script, if the program continues")
    assert second.startswith("#SBATCH --no-requeue    #")


def test_a_launch_starts_again_in_a_job_with_requeue(runs: Runs, tmp_path: Path) -> None:
    """The fix of the refusal, in the batch script: the default of Slurm is not enough, and a training has a setting."""
    record(runs)
    write_script(tmp_path, "#SBATCH -N2 --requeue --no-kill")
    (note,) = check_job_start(job(2, 2, restarts=1), COMMAND, os.environ)
    assert note.startswith("Slurm requeued job 7, as its script asks with --requeue: the command starts again")
    with pytest.raises(AboardError, match="would start over"):
        check_job_start(job(2, 2, restarts=1), COMMAND, os.environ, resumes=False)


@pytest.mark.parametrize("other", [{"id": 8}, {"command": "aboard launch -- evaluate.py"}])
def test_a_requeued_job_whose_command_had_not_started(runs: Runs, other: dict[str, int | str]) -> None:
    """It starts, and says so: a node may have failed before Aboard ran."""
    record(runs, **other)  # type: ignore[arg-type] # a table of one or the other
    assert check_job_start(job(2, 2, restarts=1), COMMAND, os.environ) == (
        "Slurm requeued job 7, and no earlier start of this command is recorded here: it starts from the beginning",
    )


def test_a_requeued_training(runs: Runs) -> None:
    """It continues if it may; with another `resume`, it would start over and is refused."""
    command = format_shell("aboard train run.yaml")
    record(runs, command=command)
    (note,) = check_job_start(job(2, 2, restarts=2), command, os.environ, resumes=True)
    assert note.startswith("Slurm requeued job 7: training continues from its newest checkpoint, or from")
    with pytest.raises(AboardError) as caught:
        check_job_start(job(2, 2, restarts=2), command, os.environ, resumes=False)
    assert caught.value.fix.startswith("aboard train run.yaml --set train.resume=auto    # in the batch script")


@pytest.mark.parametrize(
    ("env", "refused"),
    [
        ({"SLURMD_NODENAME": "n1"}, True),
        ({"SLURMD_NODENAME": "n1", "SLURM_STEP_ID": "4294967291"}, True),
        ({"SLURMD_NODENAME": "n1", "SLURM_STEP_ID": "4294967290"}, False),
        ({}, False),
    ],
)
def test_a_detached_run(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], refused: bool) -> None:  # noqa: FBT001 - a table
    """It would end with the batch script; a shell of salloc stays."""
    for name in ("SLURMD_NODENAME", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    if not refused:
        assert check_job_start(job(2, 2), COMMAND, os.environ, detach=True) == ()
        return
    with pytest.raises(AboardError) as caught:
        check_job_start(job(2, 2), COMMAND, os.environ, detach=True)
    assert caught.value.code == "slurm-detached"


@pytest.mark.parametrize(
    ("gpus", "seen", "change"),
    [
        ((2,), "2 nodes were requested by cluster.slurm, but there are 1: n1", "nodes=1"),
        ((2, 0), "2 nodes were requested by cluster.slurm, but there are 1: n1", "nodes=1"),
        ((2, 1), "2 GPUs per node were requested by cluster.slurm, but the job has 1 on n2", "gpus_per_node=1"),
        ((0, 0), "2 GPUs per node were requested by cluster.slurm, but the job has 0 on n[1-2]", "gpus_per_node=null"),
    ],
)
def test_a_job_smaller_than_the_request_is_refused(gpus: tuple[int, ...], seen: str, change: str) -> None:
    """Fewer nodes or GPUs than cluster.slurm asks for never become a smaller run."""
    with pytest.raises(InputError) as caught:
        check_job_size(job(*gpus), SlurmSettings(nodes=2, gpus_per_node=2), COMMAND, ranks=None)
    (problem,) = caught.value.problems
    assert (caught.value.code, problem.where, problem.seen) == ("launch-plan", "Slurm job 7", seen)
    assert problem.fix.startswith("salloc --no-kill --nodes=2 --gpus-per-node=2 aboard launch -- train.py    #")
    assert f"add: --set cluster.slurm.{change} " in problem.fix


def test_a_job_that_is_large_enough() -> None:
    """More nodes are used, with a note; unknown GPUs, more of them, or a number of ranks that was typed are fine."""
    asked = SlurmSettings(nodes=2, gpus_per_node=2)
    for gpus, ranks in (((2, 2), None), ((8, 8), None), ((None, None), None), ((1, 1), 1)):
        assert check_job_size(job(*gpus), asked, COMMAND, ranks=ranks) == ()
    (note,) = check_job_size(job(2, 2, 2), asked, COMMAND, ranks=None)
    assert note == "job 7 has 3 nodes, and all are used; cluster.slurm asks for 2 nodes"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("--", "train.py"), True),
        (("--", "torchrun", "--nproc-per-node=1", "train.py"), True),
        (("--set", "cluster.slurm.nodes=1", "--", "train.py"), True),
        (("--set", "cluster.slurm.nodes=1", "--set", "cluster.slurm.gpus_per_node=null", "--", "train.py"), False),
        (("--run", RUN, "--", "train.py"), False),
        (("--", "torchrun", "--nnodes=1", "train.py"), False),
        (("--", "srun", "-N1", "python", "train.py"), False),
    ],
)
def test_a_launch_compares_the_job_with_the_file(
    words: tuple[str, ...], *, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Aboard submitted itself, and a pasted command with its own number of nodes, keep their size."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("aboard.yaml").write_text("cluster: {slurm: {nodes: 2, gpus_per_node: 2}}\n")
    detail = "     Nodes=n1 CPU_IDs=0-1 Mem=0 GRES="
    (tmp_path / "script").write_text(f"JobId=7\n   JobState=RUNNING\n   NodeList=n1\n{detail}\n")
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\n[ "$1" = write ] || cat {tmp_path}/script\necho GresTypes = gpu\n')
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}.items():
        monkeypatch.setenv(name, value)
    ran = aboard("launch", "--dry-run", "--check", "none", *words)
    assert ("were requested by cluster.slurm" in ran.stderr) is refused, ran.stderr
    assert (ran.code == 3) is refused, ran.stderr
