"""Sandbox hosts with containers: the ordinary user starts both runtimes."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import build_sandbox
from small_wheels import install, make_full_venv

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("containers")]

SCRIPT = "import json, os, torch; print(json.dumps([os.getuid(), torch.ones(2).sum().item()]))"


def test_both_runtimes_start_torch() -> None:
    """The image looks as if it contained Python and torch; Podman maps its root to the user."""
    with build_sandbox("containers", nodes=1, containers=True) as box:
        (node,) = box.nodes
        user = int(node.run(["id", "-u"]).stdout)
        commands = {
            user: ["apptainer", "exec", "/opt/images/train.sif", "python3", "-c", SCRIPT],
            0: ["podman", "run", "--rm", "train", "python3", "-c", SCRIPT],
        }
        for inside, command in commands.items():
            done = node.run(command, timeout=300)
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout) == [inside, 2.0]


@pytest.fixture
def venv() -> Iterator[Path]:
    """In a home that others can't enter, with a package that only it has, and Aboard."""
    folder = Path(tempfile.mkdtemp(dir=Path.home(), prefix="aboard-image-"))
    made = make_full_venv(folder / "venv")
    install(made, "tiny", "1.0", {"tiny/__init__.py": "value = 7\n"})
    yield made
    shutil.rmtree(folder)


def test_images_of_bare_hosts_have_the_environment_of_whoever_built_them(venv: Path, box_name: str) -> None:
    """As an image contains what a training imports; the host itself has only the base interpreter."""
    source = Path(__file__).parents[2] / "src"
    env = {**os.environ, "VIRTUAL_ENV": str(venv), "ABOARD_SANDBOX": box_name, "PYTHONPATH": str(source)}

    def aboard(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [f"{venv}/bin/python", "-m", "aboard", "sandbox", *words]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)

    made = aboard("up", "--bare", "--containers", "--nodes", "1", "--slots", "1")
    assert made.returncode == 0, made.stderr
    code = "import sys, tiny; print(sys.prefix, tiny.value)"
    for outside in (["apptainer", "exec", "/opt/images/train.sif"], ["podman", "run", "--rm", "train"]):
        inside = aboard("exec", "--node", "n1", "--", *outside, "python", "-c", code)
        assert inside.stdout == f"{venv} 7\n", inside.stderr
    assert aboard("exec", "--node", "n1", "--", "test", "-e", str(venv)).returncode == 1
