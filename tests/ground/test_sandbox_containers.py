"""Sandbox hosts with containers: the ordinary user starts both runtimes."""

import json

import pytest
from launching import build_sandbox

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
