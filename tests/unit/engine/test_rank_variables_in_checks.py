"""What a captured script has exported, or was typed before the command, holds in the checks of a launch, too."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aboard.config.accelerate_config import parse_accelerate_config
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import ReachedNode
from aboard.core.cluster.container import Container
from aboard.core.cluster.node import Node
from aboard.core.launchers.captured_launch import Capture, CapturedFiles, read_captured_launch
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import ProbeCommand, ProbeFiles
from aboard.doctor.collective.participants import NodeCapabilities
from aboard.doctor.network.mesh_result import MeshResult
from aboard.engine.request.launch_spec import choose_subjects
from aboard.node_scripts.script_source import read_script

CAPTURED = {"PYTHONPATH": "src2:", "LD_LIBRARY_PATH": "/opt/nccl/lib"}
CONTAINER = Container(runtime="apptainer", image="/i.sif", env={"LD_LIBRARY_PATH": "/inside"})

REACHED = ReachedNode(hostname="n", user="me", address="", python="3.11", round_trip=0.0, clock_offset=0.0)


@pytest.mark.parametrize("name", ["software", "cuda", "torch"])
@pytest.mark.parametrize("container", [None, CONTAINER])
def test_every_check_that_starts_the_ranks_python_gets_their_variables(name: str, container: Container | None) -> None:
    """Also with the program from another place than a script's, and over what the container sets."""
    probes = {probe.name: probe for subject in choose_subjects("full", None, CAPTURED) for probe in subject.probes}
    ask = probes[name].question
    assert not isinstance(ask, ProbeCommand | ProbeFiles)
    question = ask(Node(name="n1", workdir="/job", env={"NCCL_DEBUG": "INFO"}, container=container))
    assert isinstance(question, ProbeCommand)
    env = question.describe()["env"]
    assert (env["NCCL_DEBUG"], env["LD_LIBRARY_PATH"]) == ("INFO", "/opt/nccl/lib")
    # In a container, it runs in the ranks' own directory.
    assert env["PYTHONPATH"] in ("/job/src2:/job/", "src2:") if container else "/job/src2:/job/"


@pytest.mark.parametrize(
    "launcher", ["torchrun", "accelerate launch --num_processes 2", "python -m torch.distributed.run"]
)
def test_a_module_that_only_the_captured_python_path_has_is_found(launcher: str, tmp_path: Path) -> None:
    """As from `PYTHONPATH=src2 accelerate launch -m pkg.run`, which axolotl calls like that, too."""
    (tmp_path / "src2/pkg").mkdir(parents=True)
    (tmp_path / "src2/pkg/run.py").touch()
    argv = (*launcher.split(), "-m", "pkg.run")
    env = {"PYTHONPATH": "src2"}
    capture = Capture(node="n1", launcher=argv[0], argv=argv, cwd=str(tmp_path), python=sys.executable, env=env)
    files = CapturedFiles(capture=capture, parse=parse_accelerate_config)
    command = read_captured_launch(capture, ("aboard", "launch"), files)
    (software,) = (
        each
        for each in choose_subjects("quick", command.request.program, command.request.env)
        if each.name == "software"
    )
    ask = software.probes[0].question
    assert not isinstance(ask, ProbeCommand | ProbeFiles)
    question = ask(Node(name="n1", python=sys.executable, workdir=command.workdir))
    assert isinstance(question, ProbeCommand)
    words = [sys.executable, "-Sc", read_script("software_inventory"), *question.argv[1:]]
    found = subprocess.run(words, capture_output=True, text=True, check=True, env=dict(question.env)).stdout
    assert json.loads(found)["program"]["module"] == f"{tmp_path}/src2/pkg/run.py"


def test_ranks_of_the_collective_test_get_the_variables_of_the_launch() -> None:
    """Beside the token of the test, inside a container as well."""
    nodes = (Node(name="n1", workdir="/job"), Node(name="n2", container=CONTAINER))
    about = NodeCapabilities(torch=True, gpus=0, cores=2, port=20_500, machine="m", token="t")  # noqa: S106 - of nothing
    facts = Facts(
        cluster=Cluster(nodes=nodes),
        contacts=dict.fromkeys(("n1", "n2"), REACHED),
        answers={"torch": {node.name: about for node in nodes}},
        outcomes={"mesh": MeshResult(targets={"n1": "10.0.0.1", "n2": "10.0.0.2"})},
    )
    (probe,) = (
        probe
        for subject in choose_subjects("full", None, CAPTURED)
        for probe in subject.multi_node_probes
        if probe.name == "collective"
    )
    asked: Any = next(probe.script(facts))
    env = {name: each.fields["env"] for name, each in asked.items()}
    assert env["n1"]["PYTHONPATH"] == "/job/src2:/job/"
    assert [env[name]["LD_LIBRARY_PATH"] for name in env] == ["/opt/nccl/lib", "/opt/nccl/lib"]
    assert [env[name]["ABOARD_CHECK_TOKEN"] for name in env] == ["t", "t"]
    assert json.loads(asked["n1"].fields["argv"][4])["world"] == 2
