"""Submission to a stand-in for sbatch: what it gets, and how its refusals are explained."""

import asyncio
import os
from pathlib import Path

import pytest
from typed_commands import aboard

from aboard.diagnoses import AboardError
from aboard.engine.slurm.submit_job import check_request, submit_run_script, submit_script
from aboard.record.run_directory import RunDirectory
from aboard.record.slurm_job import SlurmJob, read_slurm_job

SCRIPT = "#!/bin/bash\n#SBATCH --partition=gpu\n#SBATCH --no-kill\nexec true\n"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def put_sbatch(programs: Path, text: str) -> None:
    (programs / "sbatch").write_text(f"#!/bin/sh\n{text}\n")
    (programs / "sbatch").chmod(0o755)


def test_a_run_is_submitted_and_recorded(programs: Path, tmp_path: Path) -> None:
    """The script is private; variables that would override it are dropped, and the others are exported."""
    put_sbatch(programs, f'echo "$@" > {tmp_path}/argv; env > {tmp_path}/env; echo "12;cluster"')
    run = RunDirectory(tmp_path / "20261116-1930-brave-otter")
    run.make()
    environ = {**os.environ, "SBATCH_PARTITION": "other", "SBATCH_ACCOUNT": "mine", "HF_TOKEN": "abc"}
    job = asyncio.run(submit_run_script(run, SCRIPT, environ))
    assert job == read_slurm_job(run) == SlurmJob(id=12, script=str(run.batch_script))
    assert run.batch_script.stat().st_mode & 0o077 == 0
    assert (tmp_path / "argv").read_text() == f"--parsable {run.batch_script}\n"
    exported = (tmp_path / "env").read_text().splitlines()
    assert {"SBATCH_ACCOUNT=mine", "HF_TOKEN=abc"} <= set(exported)
    assert not any(line.startswith("SBATCH_PARTITION=") for line in exported)


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("Batch job submission failed: Invalid partition name specified", "sinfo --summarize"),
        (
            "Batch job submission failed: Invalid account or account/partition combination specified",
            "sacctmgr show associations",
        ),
        ("Batch job submission failed: Invalid qos specification", "sacctmgr show associations"),
        ("Batch job submission failed: Requested node configuration is not available", "sinfo --format='%P %D"),
        (
            "Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
            "sinfo --format='%P %l'",
        ),
        ("Batch job submission failed: Node count specification invalid", "sinfo --format='%P %D"),
        ("Batch job submission failed: Unable to contact slurm controller (connect failure)", "scontrol ping"),
        ("unrecognized option '--foo'", "sbatch --help"),
        ("something new", "sbatch --test-only"),
    ],
)
def test_a_refusal_is_explained(programs: Path, tmp_path: Path, said: str, fix: str) -> None:
    """With what sbatch wrote, and the command that shows what the cluster has."""
    put_sbatch(programs, f'echo "sbatch: error: {said}" >&2; exit 1')
    script = tmp_path / "job.sh"
    script.write_text(SCRIPT)
    with pytest.raises(AboardError) as caught:
        asyncio.run(submit_script(script, os.environ))
    assert caught.value.seen == said.removeprefix("Batch job submission failed: ")
    assert caught.value.fix.startswith(fix)


def test_a_machine_without_sbatch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are submitted on a login node."""
    monkeypatch.setenv("PATH", str(tmp_path))
    script = tmp_path / "job.sh"
    script.write_text(SCRIPT)
    with pytest.raises(AboardError) as caught:
        asyncio.run(submit_script(script, os.environ))
    assert caught.value.seen == "there is no sbatch on this machine"
    assert "login node" in caught.value.fix


def test_a_script_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--dry-run --as sbatch prints what would be submitted, and needs neither nodes nor Slurm."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    ran = aboard("launch", "--dry-run", "--as", "sbatch", "--set", "cluster.slurm.nodes=2", "--", "a.py")
    assert ran.code == 0, ran.stderr
    assert ran.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=aboard-launch\n#SBATCH --nodes=2\n")
    assert ran.stdout.endswith(" -P -m aboard launch --set cluster.slurm.nodes=2 -- a.py\n")
    missing = aboard("launch", "--dry-run", "--as", "sbatch", "--", "a.py")
    assert missing.code == 3
    assert "slurm-request" in missing.stderr
    (tmp_path / "t.yaml").write_text("train: {model: m}\ndata: {files: d.jsonl}\ncluster: {slurm: {nodes: 2}}\n")
    started = aboard("train", "--as", "sbatch", "t.yaml")
    assert "launch-dry" in started.stderr
    printed = aboard("train", "--dry-run", "--as", "sbatch", "t.yaml")
    assert printed.stdout.endswith(" -P -m aboard train t.yaml\n"), printed.stderr
    nodes = aboard("check", "--set", "cluster.slurm.nodes=2")
    assert "slurm-outside-job" in nodes.stderr


def test_a_request_is_tested_before_data_is_prepared(programs: Path) -> None:
    """What Slurm would refuse is an error; what no node can fulfil now is a note."""
    put_sbatch(programs, 'cat > /dev/null; test "$*" = --test-only || exit 2')
    assert asyncio.run(check_request(SCRIPT, os.environ)) is None
    put_sbatch(programs, 'echo "allocation failure: Requested node configuration is not available" >&2; exit 1')
    note = asyncio.run(check_request(SCRIPT, os.environ))
    assert note is not None
    assert note.startswith("Requested node configuration is not available; sinfo ")
    put_sbatch(programs, 'echo "allocation failure: Invalid partition name specified" >&2; exit 1')
    with pytest.raises(AboardError, match="Invalid partition name specified"):
        asyncio.run(check_request(SCRIPT, os.environ))
