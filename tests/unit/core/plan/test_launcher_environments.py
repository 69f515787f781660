"""What the real launchers set for a rank, as it was seen, against what a plan sets."""

from pathlib import Path

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_resources import NodeResources
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.plan import MasterAddress
from aboard.core.plan.plan_builder import build_plan
from aboard.core.plan.program import Program, ProgramKind

SEEN = Path(__file__).parents[2] / "golden" / "paste" / "set_by"
NOT_IN_A_PLAN = {
    "TORCHELASTIC_ERROR_FILE",  # the supervisor's, who knows where the run's directory is
    "TORCHELASTIC_SIGNALS_TO_HANDLE",  # torchrun tells its own agent by it
}


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_a_plan_sets_what_the_launcher_sets(launcher: str) -> None:
    """A script that reads any variable of its old launcher finds it."""
    node = Node(name="n1", slots=2, picked=(0, 1))
    request = LaunchRequest(program=Program(kind=ProgramKind.SCRIPT, target="x.py"))
    master = MasterAddress(node="n1", address="10.0.0.1", port=29500)
    made = build_plan(
        Cluster(nodes=(node,)), request, {"n1": NodeResources(address="10.0.0.1")}, run="r", master=master
    )
    seen = set((SEEN / f"{launcher}.txt").read_text("utf-8").splitlines()[1:])
    assert seen - made.parts[0].starts[0].env.keys() - NOT_IN_A_PLAN == set()
