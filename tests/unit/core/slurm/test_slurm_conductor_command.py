"""The command in a batch script, and commands that need a job."""

import pytest

from aboard.core.slurm.conductor_command import build_conductor_command, refuse_outside_job
from aboard.core.slurm.slurm_settings import SlurmSettings
from aboard.diagnoses import AboardError, InputError

RUN = "20261116-1930-brave-otter"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("launch -- train.py", f"launch --run {RUN} -- train.py"),
        ("launch -d -- train.py -d --dry-run", f"launch --run {RUN} -- train.py -d --dry-run"),
        ("launch --detach --ranks 2 -- a.py", f"launch --run {RUN} --ranks 2 -- a.py"),
        ("launch -dm -- pkg.train", f"launch --run {RUN} -m -- pkg.train"),
        ("launch --env A=1 --env=B=2 -- a.py", f"launch --run {RUN} --env A=1 --env B=2 -- a.py"),
        ("train llama.yaml -d", f"train --run {RUN} --resubmit 3 llama.yaml"),
        ("launch --set cluster.env.A=1 -- a.py", f"launch --run {RUN} --set cluster.env.A=1 -- a.py"),
    ],
)
def test_the_typed_command_runs_in_the_job(typed: str, words: str) -> None:
    """In the foreground, with the run's id; what follows `--` is untouched."""
    command = build_conductor_command(typed.split(), run=RUN, resubmits=3)
    assert " ".join(command.words) == words
    assert command.secrets == {}


def test_a_printed_script_names_no_run() -> None:
    """It may be submitted many times; --dry-run and --as belong to the printing."""
    argv = ["train", "--dry-run", "--as", "sbatch", "--as=sbatch", "a.yaml"]
    assert build_conductor_command(argv, run=None, resubmits=0).words == ("train", "a.yaml")


def test_secrets_travel_by_name() -> None:
    """Their values are in the environment of sbatch, not in the script."""
    argv = ["launch", "--env", "HF_TOKEN=abc=", "--env=MY_KEY=k", "--set", "cluster.env.WANDB_API_KEY=w", "--", "a.py"]
    command = build_conductor_command(argv, run=None, resubmits=0)
    assert command.words == ("launch", "--env", "HF_TOKEN", "--env", "MY_KEY", "--env", "WANDB_API_KEY", "--", "a.py")
    assert command.secrets == {"HF_TOKEN": "abc=", "MY_KEY": "k", "WANDB_API_KEY": "w"}
    assert "abc" not in repr(command)


def test_a_secret_that_is_no_variable_is_refused() -> None:
    """There is no place for it but the file."""
    with pytest.raises(InputError) as caught:
        build_conductor_command(["train", "--set", "data.api_key=abc"], run=None, resubmits=0)
    (problem,) = caught.value.problems
    assert problem.where == "--set data.api_key"
    assert "abc" not in f"{problem.seen} {problem.fix}"


def test_a_command_that_needs_nodes_is_answered_with_salloc() -> None:
    """The same request, and the same command inside it."""
    settings = SlurmSettings(nodes=4, partition="gpu", constraint="a&b", extra=("--exclusive",))
    with pytest.raises(AboardError) as caught:
        refuse_outside_job(settings, ["check", "--full"])
    assert caught.value.seen == "cluster.slurm asks for 4 nodes, but this command does not run in a job"
    assert caught.value.fix == (
        "salloc --no-kill --partition=gpu --nodes=4 '--constraint=a&b' --exclusive aboard check --full"
    )
