"""The agent's part in the end of containers: exit codes, removal by label, unpacked images."""

import os
import tempfile
from pathlib import Path

import pytest

from aboard.agent import run_directory
from aboard.agent.container.container_cleanup import record_runtime, remove_containers
from aboard.agent.container.container_processes import MARK, ContainerProcesses
from aboard.agent.event_loop import EventLoop


@pytest.mark.parametrize(
    ("runtime", "returned", "code"),
    [
        ("podman", 137, -9),
        ("docker", 139, -11),
        ("podman", 128, 128),
        ("podman", 125, 125),
        ("podman", 255, 255),
        ("podman", -9, -9),
        ("apptainer", 137, 137),
    ],
)
def test_exit_code_is_that_of_the_rank(runtime: str, returned: int, code: int) -> None:
    """Docker and Podman add 128 to the signal that killed a rank; Apptainer dies of the same signal itself."""
    containers = ContainerProcesses(EventLoop(), "no-such-run")
    env: dict[str, str] = {}
    containers.add("rank 0", runtime, env)
    assert env[MARK] == "0"
    assert containers.finish("rank 0", returned) == (code, None)
    assert containers.finish("another", returned) == (returned, None)


# Lists one container until it is removed, and writes down how it was called.
DOCKER = """#!/bin/sh
echo "$@" >> "$DOCKER_CONFIG/calls"
case $1 in
ps) cat "$DOCKER_CONFIG/containers" ;;
rm) : > "$DOCKER_CONFIG/containers" ;;
esac
"""


def test_containers_are_removed_by_label(tmp_path: Path) -> None:
    """Whoever cleans up asks the recorded runtime for the run's containers only, and keeps no secret for that."""
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "containers").write_text("0f42\n")
    directory = tmp_path / "run-1"
    directory.mkdir()
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DOCKER_CONFIG": str(tmp_path), "HF_TOKEN": "secret"}
    for _rank in range(2):
        record_runtime(str(directory), "docker", (), env)
    record_runtime(str(directory), "apptainer", (), env)
    (record,) = tmp_path.glob("run-1.*")
    assert record.read_text().count("\n") == 1
    assert "secret" not in record.read_text()
    assert remove_containers("run-1", str(directory))
    listing = "ps --all --quiet --no-trunc --filter label=aboard.run=run-1\n"
    assert (tmp_path / "calls").read_text() == f"{listing}rm --force 0f42\n{listing}"
    run_directory.remove_directory(str(directory))
    assert not record.exists()
    assert not remove_containers("run-1", str(directory))


def test_read_only_directories_are_removed() -> None:
    """An unpacked image has directories in which not even their owner may write."""
    base = Path(tempfile.mkdtemp(prefix="aboard-test-"))
    base.chmod(0o777)
    child = os.fork()
    if child == 0:
        try:
            # As an ordinary user: root may write everywhere.
            if os.getuid() == 0:
                os.setuid(65534)
            (base / "run/images/0/usr").mkdir(parents=True)
            (base / "run/images/0/usr/file").touch()
            (base / "run/images/0/usr").chmod(0o555)
            (base / "run/images/0").chmod(0o000)
            run_directory.remove_directory(str(base / "run"))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert not (base / "run").exists()
    if base.exists():
        base.rmdir()
