"""Pasted srun and sbatch commands on a login node: which job is submitted, and what must not be in its script."""

from pathlib import Path

import pytest
from typed_commands import aboard

SCRIPT = "#!/bin/bash\n#SBATCH --nodes=2 --gres=gpu:4\n#SBATCH -p gpu\nsrun torchrun --nproc-per-node 4 train.py\n"


@pytest.fixture(autouse=True)
def login_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "job.sh").write_text(SCRIPT)
    return tmp_path


def test_the_job_of_a_script() -> None:
    """The job has the size of the script's own, and runs the same words."""
    ran = aboard("launch", "--dry-run", "--", "sbatch", "job.sh", "--lr", "1")
    assert ran.code == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert {"#SBATCH --partition=gpu", "#SBATCH --nodes=2", "#SBATCH --gpus-per-node=4"} <= set(lines)
    assert lines[-1].endswith("-m aboard launch -- sbatch job.sh --lr 1")


def test_the_pasted_command_comes_before_the_section(login_node: Path) -> None:
    """Two requests are never mixed: cluster.slurm is not used, and a note says so."""
    (login_node / "aboard.yaml").write_text("cluster: {slurm: {nodes: 9, account: other}}\n")
    ran = aboard("launch", "--dry-run", "--as", "sbatch", "--", "srun", "-N3", "torchrun", "x.py")
    assert "#SBATCH --nodes=3" in ran.stdout
    assert "other" not in ran.stdout
    assert "cluster.slurm is not used" in ran.stderr


def test_named_nodes_come_before_a_job() -> None:
    """With nodes on the command line, srun's words are only what to run there, and a note says so."""
    ran = aboard("launch", "localhost", "--dry-run", "--check", "none", "--", "srun", "-n2", "-N1", "python", "x.py")
    assert "#SBATCH" not in ran.stdout
    assert "2 ranks" in ran.stdout, ran.stderr
    assert "note: No job is submitted: the command line names the nodes." in ran.stderr


def test_a_batch_script_over_ssh() -> None:
    """It needs Slurm's commands, so it is refused with the two ways to run it."""
    ran = aboard("launch", "localhost", "--dry-run", "--check", "none", "--", "sbatch", "job.sh")
    assert ran.code == 3
    assert "salloc --nodes=2" in ran.stderr


@pytest.mark.parametrize("words", [["HF_TOKEN=abc", "srun"], ["srun", "--export=ALL,HF_TOKEN=abc"]])
def test_secrets_stay_out_of_the_script(words: list[str]) -> None:
    """A value that may be a secret is refused, with the way to pass it by name."""
    ran = aboard("launch", "--dry-run", "--", *words, "-N2", "torchrun", "x.py")
    assert ran.code == 3
    assert "abc" not in ran.stdout + ran.stderr
    assert "--env HF_TOKEN" in ran.stderr


def test_a_missing_script() -> None:
    """A script that doesn't exist is named before anything is submitted."""
    ran = aboard("launch", "--", "sbatch", "jobs.sh")
    assert ran.code == 3
    assert "jobs.sh" in ran.stderr


@pytest.mark.parametrize(("container", "notes"), [((), 1), (("apptainer", "exec", "x.sif"), 0)])
def test_a_program_that_is_not_on_the_login_node(container: tuple[str, ...], notes: int) -> None:
    """A note says so, except of a program in a container, which has files of its own."""
    ran = aboard("launch", "--dry-run", "--", "srun", "-N2", *container, "torchrun", "/app/train.py")
    assert ran.code == 0, ran.stderr
    assert ran.stderr.count("there is no /app/train.py on this machine") == notes
