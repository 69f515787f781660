"""The batch script: whole texts, compared with golden files, and parsed by a real bash."""

import subprocess
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from aboard.core.slurm.batch_script import (
    BatchCommand,
    describe_missing_cores,
    describe_written_secret,
    format_batch_script,
    list_marked_jobs,
    list_overriding_variables,
    mark_unmonitored,
)
from aboard.core.slurm.conductor_command import build_conductor_command
from aboard.core.slurm.job_state import parse_job_status
from aboard.core.slurm.slurm_settings import SlurmSettings

GOLDEN = Path(__file__).parents[2] / "golden" / "sbatch"
ABOARD = ("/home/alice/venv/bin/python", "-P", "-m", "aboard")
DOCS = Path(__file__).parents[4] / "docs" / "slurm.md"
RUN = "20261116-1930-brave-otter"

CASES = {
    "smallest": (
        SlurmSettings(nodes=2),
        BatchCommand(argv=[*ABOARD, "launch", "--", "train.py"], directory="/home/alice/llama"),
        "aboard-launch",
    ),
    "quoted": (
        SlurmSettings(nodes=2, gpus_per_node=4, extra=("--output=/scratch/%j.out", '--comment="two words"')),
        BatchCommand(
            argv=[*ABOARD, "launch", "--run", RUN, "--env", "HF_TOKEN", "--", "run.sh", "it's", "$HOME"],
            directory="/home/alice/my project",
            exports={"XDG_STATE_HOME": "/scratch/alice's"},
            secrets=("HF_TOKEN",),
        ),
        RUN,
    ),
    "512-nodes": (
        SlurmSettings(
            nodes=512,
            partition="gpu",
            gpus_per_node=8,
            account="llm",
            time="2-00:00:00",
            qos="large",
            constraint="h100&rail",
            exclude="gpu[0017,0300-0303]",
            extra=("--exclusive", "--mem=0", "--switches=2@1:00:00"),
            resubmit_limit=5,
        ),
        BatchCommand(
            argv=[*ABOARD, *build_conductor_command(["train", "llama.yaml"], run=RUN, resubmits=5).words],
            directory="/lustre/alice/llama",
        ),
        RUN,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_script_is_golden(case: str) -> None:
    """Every line; a value that the shell would expand is quoted, and bash accepts the whole."""
    settings, command, name = CASES[case]
    text = format_batch_script(settings, command, name=name, run=name if name == RUN else None)
    assert text == (GOLDEN / f"{case}.sh").read_text()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_the_job_keeps_the_users_name_and_comment() -> None:
    """`--dependency=singleton` and paths with $SLURM_JOB_NAME go by the name; only the comment ends with the run."""
    settings, command, _name = CASES["smallest"]
    own = replace(settings, extra=("-J llama", "--comment=project x", "--dependency=singleton"))
    lines = format_batch_script(own, command, name=RUN, run=RUN).splitlines()
    assert {"#SBATCH -J llama", f'#SBATCH --comment="project x aboard:{RUN}"'} < set(lines)
    assert not any("--job-name" in line for line in lines)
    assert '#SBATCH --comment="project x"' in format_batch_script(own, command, name="x").splitlines()


def test_jobs_are_found_by_the_end_of_their_comments() -> None:
    """A comment that only mentions a run marks none, and neither does one that a site has rewritten."""
    queue = f"7 project x aboard:{RUN}\n8 aboard:{RUN}\n9 (null)\n10 like aboard:{RUN} but later\nslurm: bad\n"
    assert list_marked_jobs(queue) == {RUN: [7, 8], "": [9, 10]}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"project x aboard:{RUN}", f"project x not-monitored aboard:{RUN}"),
        (f"aboard:{RUN}", f"not-monitored aboard:{RUN}"),
        ("(null)", ""),
    ],
)
def test_a_job_whose_script_started_no_ranks_is_marked(before: str, after: str) -> None:
    """It is found as before, and a login node without its record sees the mark; other jobs' comments stay."""
    assert mark_unmonitored(before) == after
    if after:
        assert list_marked_jobs(f"7 {after}\n") == {RUN: [7]}
    status = parse_job_status(f"JobId=7 JobName=x JobState=COMPLETED Comment={after or before} ExitCode=0:0")
    assert status is not None
    assert status.is_unmonitored == bool(after)


def test_the_environment_of_sbatch_does_not_override_the_script() -> None:
    """For sbatch, SBATCH_… variables win over #SBATCH lines; those of options that the script leaves open stay."""
    settings, command, name = CASES["512-nodes"]
    dropped = list_overriding_variables(format_batch_script(settings, command, name=name))
    assert {"SBATCH_PARTITION", "SBATCH_TIMELIMIT", "SBATCH_MEM_PER_NODE", "SBATCH_NO_KILL"} <= set(dropped)
    assert {"SBATCH_EXPORT", "SBATCH_ARRAY_INX", "SBATCH_SIGNAL", "SBATCH_OUTPUT"} <= set(dropped)
    smallest = format_batch_script(*CASES["smallest"][:2], name="x")
    assert "SBATCH_PARTITION" not in list_overriding_variables(smallest)


def test_the_documentation_explains_every_line() -> None:
    """The script for 512 nodes is in the guide, and each of its options and commands has a line there."""
    guide = DOCS.read_text()
    text = (GOLDEN / "512-nodes.sh").read_text()
    assert textwrap.indent(text.rstrip(), "    ", lambda line: bool(line.strip())) in guide
    options = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    missing = [option for option in options if f"| `{option.partition('=')[0]}" not in guide]
    assert missing == []


DEBUG = "PartitionName=debug Default=YES OverSubscribe=NO JobDefaults=(null)\n"
WHOLE = "PartitionName=whole Default=NO OverSubscribe=EXCLUSIVE JobDefaults=(null)\n"
PER_GPU = "PartitionName=gpu Default=NO OverSubscribe=NO JobDefaults=DefCpuPerGPU=8\n"


@pytest.mark.parametrize(
    ("settings", "config", "is_noted"),
    [
        (SlurmSettings(nodes=2), "", True),
        (SlurmSettings(nodes=2, partition="debug"), "", True),
        (SlurmSettings(nodes=2, extra=("--exclusive",)), "", False),
        (SlurmSettings(nodes=2, extra=("-c8",)), "", False),
        (SlurmSettings(nodes=2, partition="whole"), "", False),
        (SlurmSettings(nodes=2, partition="gpu"), "", False),
        (SlurmSettings(nodes=2, partition="unknown"), "", False),
        (SlurmSettings(nodes=2), "SelectType              = select/linear\n", False),
    ],
)
def test_a_job_with_one_core_per_node_is_noted(settings: SlurmSettings, config: str, *, is_noted: bool) -> None:
    """Slurm's default for one task; not where nodes are allocated whole, or cores come with GPUs."""
    note = describe_missing_cores(settings, DEBUG + WHOLE + PER_GPU, config)
    assert (note is not None) is is_noted


def test_a_secret_of_the_command_itself_is_noted() -> None:
    """Words after `--` are not changed, but the user should know."""
    assert describe_written_secret("exec aboard launch -- run.sh --api-key sk-abcdefghijklmnopqrst") is not None
    for settings, command, name in CASES.values():
        assert describe_written_secret(format_batch_script(settings, command, name=name)) is None


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        *((None, 120), ("24:00:00", 120), ("2-00", 120), ("1-0:30", 120), ("10", 120), ("9:00", 120), ("0", 120)),
        *(("2", 15), ("3", 30), ("00:03:00", 30), ("5:00", 60), ("0-0:5", 60), ("1", 0), ("00:01:00", 0)),
    ],
)
def test_the_signal_never_comes_at_the_start(limit: str | None, seconds: int) -> None:
    """Slurm may send it a minute early, so a short job gets it later, and one of a minute not at all."""
    settings = SlurmSettings(nodes=2, time=limit)
    script = format_batch_script(settings, BatchCommand(argv=("x",), directory="/"), name="x")
    assert (f"#SBATCH --signal=B:USR1@{seconds}\n" in script) == bool(seconds)
    assert ("--signal" in script) == bool(seconds)
