"""What the real launchers set for a rank, as it was seen, against what a plan sets."""

from pathlib import Path

import pytest

from aboard.core.cluster import Cluster
from aboard.core.node import Node
from aboard.core.plan import Master
from aboard.core.planning import plan
from aboard.core.program import Kind, Program
from aboard.core.request import Request
from aboard.core.seat import Seat

SEEN = Path(__file__).parent / "golden" / "paste" / "set_by"
NOT_IN_A_PLAN = {
    "TORCHELASTIC_ERROR_FILE",  # the keeper's, who knows where the run's directory is
    "TORCHELASTIC_SIGNALS_TO_HANDLE",  # torchrun tells its own agent by it
}


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_a_plan_sets_what_the_launcher_sets(launcher: str) -> None:
    """A script that reads any variable of its old launcher finds it."""
    node = Node(name="n1", slots=2, picked=(0, 1))
    request = Request(program=Program(kind=Kind.SCRIPT, target="x.py"))
    master = Master(node="n1", address="10.0.0.1", port=29500)
    made = plan(Cluster(nodes=(node,)), request, {"n1": Seat(address="10.0.0.1")}, run="r", master=master)
    seen = set((SEEN / f"{launcher}.txt").read_text("utf-8").splitlines()[1:])
    assert seen - made.parts[0].starts[0].env.keys() - NOT_IN_A_PLAN == set()
