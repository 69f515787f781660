"""The batch script: whole texts, compared with golden files, and parsed by a real bash."""

import subprocess
from pathlib import Path

import pytest

from aboard.core.slurm.batch_script import BatchCommand, format_batch_script, list_overriding_variables
from aboard.core.slurm.slurm_settings import SlurmSettings

GOLDEN = Path(__file__).parent / "golden" / "sbatch"
PYTHON = "/home/alice/venv/bin/python"
RUN = "20261116-1930-brave-otter"

CASES = {
    "smallest": (
        SlurmSettings(nodes=2),
        BatchCommand(argv=[PYTHON, "-m", "aboard", "launch", "--", "train.py"], directory="/home/alice/llama"),
        "aboard-launch",
    ),
    "quoted": (
        SlurmSettings(nodes=2, gpus_per_node=4, extra=("--output=/scratch/%j.out", '--comment="two words"')),
        BatchCommand(
            argv=[PYTHON, "-m", "aboard", "launch", "--run", RUN, "--env", "HF_TOKEN", "--", "run.sh", "it's", "$HOME"],
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
            argv=[PYTHON, "-m", "aboard", "train", "--run", RUN, "llama.yaml"], directory="/lustre/alice/llama"
        ),
        RUN,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_script_is_golden(case: str) -> None:
    """Every line; a value that the shell would expand is quoted, and bash accepts the whole."""
    settings, command, name = CASES[case]
    text = format_batch_script(settings, command, name=name)
    assert text == (GOLDEN / f"{case}.sh").read_text()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_the_environment_of_sbatch_does_not_override_the_script() -> None:
    """For sbatch, SBATCH_… variables win over #SBATCH lines; those of options that the script leaves open stay."""
    settings, command, name = CASES["512-nodes"]
    dropped = list_overriding_variables(format_batch_script(settings, command, name=name))
    assert {"SBATCH_PARTITION", "SBATCH_TIMELIMIT", "SBATCH_MEM_PER_NODE", "SBATCH_NO_KILL"} <= set(dropped)
    assert {"SBATCH_EXPORT", "SBATCH_ARRAY_INX", "SBATCH_SIGNAL", "SBATCH_OUTPUT"} <= set(dropped)
    smallest = format_batch_script(*CASES["smallest"][:2], name="x")
    assert "SBATCH_PARTITION" not in list_overriding_variables(smallest)
