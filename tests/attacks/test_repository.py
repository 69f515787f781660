"""Attacks by a cloned repository: the files that a command finds in its working directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 120
EVERY_WAY = {
    "python": "python: {evil}",
    "setup": "setup: ['{evil}']",
    "preload": "env: {{LD_PRELOAD: {evil}}}",
    "python-path": "env: {{PYTHONPATH: {here}}}",
    "path": "env: {{PATH: {here}}}",
    "nccl-plugin": "env: {{NCCL_NET_PLUGIN: {evil}}}",
    "container": "container: {{runtime: docker, image: evil}}",
    "node": "nodes: [{{name: localhost, python: {evil}}}]",
    "slurm": "slurm: {{nodes: 2, extra: ['--bcast={evil}']}}",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A directory with a program that leaves a mark when it runs."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "evil").write_text(f'#!/bin/sh\ntouch {tmp_path}/mark\nexec {sys.executable} "$@"\n')
    (folder / "evil").chmod(0o755)
    return folder


def write_cluster(repository: Path, line: str, more: str = "") -> None:
    nodes = "" if "nodes:" in line else "  nodes: localhost\n"
    text = line.format(evil=repository / "evil", here=repository)
    (repository / "aboard.yaml").write_text(f"cluster:\n{nodes}  {text}\n{more}")


def type_command(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs `aboard` in the repository with a home of its own, without a terminal."""
    environment = {**os.environ, "HOME": str(repository.parent), "XDG_STATE_HOME": str(repository.parent / "state")}
    # -P: as the installed command, which does not import from the working directory.
    return subprocess.run(
        [sys.executable, "-P", "-m", "aboard", *words],
        cwd=repository,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def assert_refused(repository: Path, *words: str) -> None:
    ran = type_command(repository, *words)
    assert (ran.returncode, "[file-not-allowed]" in ran.stderr) == (3, True), ran.stdout + ran.stderr
    assert "aboard allow" in ran.stderr
    assert not (repository.parent / "mark").exists()


@pytest.mark.xfail(strict=True, reason="a program that aboard.yaml names runs without a question")
@pytest.mark.parametrize("words", ["check", "launch --dry-run -- true", "launch -- true", "train --dry-run", "sync"])
def test_a_repository_that_names_a_program_runs_nothing(repository: Path, words: str) -> None:
    """No command starts what ./aboard.yaml names before `aboard allow`; each says how to allow it."""
    write_cluster(repository, EVERY_WAY["python"], "train: {model: none}\n")
    assert_refused(repository, *words.split())


@pytest.mark.xfail(strict=True, reason="as above")
@pytest.mark.parametrize("way", EVERY_WAY)
def test_every_key_that_can_name_code_needs_aboard_allow(repository: Path, way: str) -> None:
    """Interpreters, setup lines, variables that load code, containers and Slurm options are refused alike."""
    write_cluster(repository, EVERY_WAY[way])
    assert_refused(repository, "launch", "--dry-run", "--", "true")


def test_a_check_imports_no_module_of_the_repository(repository: Path) -> None:
    """A torch.py or json.py in the working directory is not imported by `aboard check`, with or without a workdir."""
    for name in ("torch", "json", "socket", "numpy", "sitecustomize", "usercustomize"):
        (repository / f"{name}.py").write_text(f"open({str(repository.parent / 'mark')!r}, 'a').write({name!r})\n")
    for text in ("cluster: {nodes: localhost}\n", f"cluster: {{nodes: localhost, workdir: {repository}}}\n"):
        (repository / "aboard.yaml").write_text(text)
        ran = type_command(repository, "check")
        assert "localhost" in ran.stdout, ran.stderr
        assert not (repository.parent / "mark").exists(), (repository.parent / "mark").read_text()
