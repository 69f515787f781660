"""Attacks by the files of a cloned repository that name an address: where a key is sent, and where ranks meet."""

import os
import select
import socket
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from deadlines import slowness
from launcher_texts import TextFiles

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_resources import NodeResources
from aboard.core.launchers.parse_command import parse_launcher_command
from aboard.core.plan.launch_request import LaunchRequest, resolve_request
from aboard.core.plan.plan import MasterAddress
from aboard.core.plan.plan_builder import build_plan
from aboard.core.plan.program import build_rank_program
from aboard.diagnoses import InputError

RANK = """
import os, sys
from pathlib import Path
from aboard.core.plan.training_settings import Training
from aboard.trainer.trackers.sender_process import TrackerSenders
from aboard.trainer.trackers.tracked_run import describe_run
folder = Path(sys.argv[1])
describe_run(Training(model="m", data=(), output_dir=str(folder), max_length=8), "r1", os.environ).save(folder)
senders = TrackerSenders(folder, ["wandb"])
sys.stdin.read()
"""


def test_settings_of_wandb_in_the_working_directory_name_no_server(tmp_path: Path) -> None:
    """The key goes to the server of the user's own settings, not to that of ./wandb/settings or ./.wandb/settings."""
    with socket.create_server(("127.0.0.1", 0)) as mine, socket.create_server(("127.0.0.1", 0)) as theirs:
        for place, server in (("home/.config/wandb", mine), ("repository/wandb", theirs), ("out/wandb", theirs)):
            (tmp_path / place).mkdir(parents=True)
            address = f"http://127.0.0.1:{server.getsockname()[1]}"
            (tmp_path / place / "settings").write_text(f"[default]\nbase_url = {address}\n")
        env = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "XDG_"))}
        env |= {"HOME": str(tmp_path / "home"), "WANDB_API_KEY": "0123456789" * 4}
        command = [sys.executable, "-P", "-c", RANK, str(tmp_path / "out")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=env, cwd=tmp_path / "repository") as rank:
            reached, _, _ = select.select([mine, theirs], [], [], 60 * slowness())
            rank.kill()
        assert reached == [mine]


def test_a_file_can_not_move_the_rendezvous() -> None:
    """Ranks connect to rank 0's node: another MASTER_ADDR in `env` is refused, and one in .deepspeed_env ignored."""
    request = LaunchRequest(program=build_rank_program(["train.py"]))
    for address, refused in (("203.0.113.9", True), ("n1", False)):
        nodes = (Node(name="n1", env={"MASTER_ADDR": address}), Node(name="n2", env={"MASTER_ADDR": address}))
        cluster, resolved = resolve_request(Cluster(nodes=nodes), request, "/")
        assert resolved.master_address is None
        seats = {node.name: NodeResources(address=node.name) for node in cluster}
        master = MasterAddress(node="n1", address="n1")
        with pytest.raises(InputError, match="MASTER_ADDR is 203") if refused else nullcontext():
            plan = build_plan(cluster, resolved, seats, run="r", master=master)
            assert {start.env["MASTER_ADDR"] for _node, start in plan.starts()} == {"n1"}
        typed = replace(request, env={"MASTER_ADDR": "10.0.0.1"})
        cluster, resolved = resolve_request(Cluster(nodes=nodes), typed, "/")
        assert resolved.master_address == "10.0.0.1"
        build_plan(cluster, resolved, seats, run="r", master=master)
    files = TextFiles({"./.deepspeed_env": "MASTER_ADDR=203.0.113.9\nMASTER_PORT=1\nNCCL_DEBUG=INFO\n", "h": ""})
    command = parse_launcher_command(["deepspeed", "--hostfile", "h", "train.py"], files)
    assert command is not None
    assert command.request.env.keys() & {"MASTER_ADDR", "MASTER_PORT", "NCCL_DEBUG"} == {"NCCL_DEBUG"}
