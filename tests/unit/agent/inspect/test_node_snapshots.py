"""What a node answers when it is asked, from its own processes and connections, and as it is read on the head."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deadlines import slowness, wait_until

from aboard.agent.inspect import node_state, process_activity
from aboard.agent.inspect.snapshot_collector import collect_snapshot
from aboard.agent.inspect.tcp_sockets import SocketTables
from aboard.core.evidence.node_snapshot import decode_node_snapshot
from aboard.core.evidence.python_stacks import classify_activity, find_user_frame, parse_main_thread
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted


def test_a_sleeping_process_and_what_it_waits_for() -> None:
    """Its state in each look, its system call, and that it uses no time."""
    child = subprocess.Popen([sys.executable, "-ISc", "import os; r, w = os.pipe(); os.read(r, 1)"])
    try:
        wait_until(lambda: process_activity.sample_processes([child.pid], 0.0)[child.pid]["call"] == "read", 10)
        seen = process_activity.sample_processes([child.pid], 0.1)[child.pid]
        assert set(seen["states"]) == {"S"}
        assert seen["file"].startswith("pipe:[")
        assert seen["cpu"] < 0.2
    finally:
        child.kill()
        child.wait()


def test_a_busy_process_is_seen_to_be() -> None:
    """Over a tenth of a second."""
    child = subprocess.Popen([sys.executable, "-ISc", "while True: pass"])
    try:
        wait_until(
            lambda: process_activity.sample_processes([child.pid], 0.2)[child.pid]["cpu"] >= 0.2 / slowness(), 10
        )
    finally:
        child.kill()
        child.wait()


def test_connections_and_who_listens() -> None:
    """With what lies unread, and the kernel's own round trip."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as client, listener.accept()[0]:
            client.send(b"x" * 10)
            found = SocketTables().of([os.getpid()])
            place = f"127.0.0.1:{listener.getsockname()[1]}"
            assert any(each["state"] == "LISTEN" and each["local"] == place for each in found)
            near = next(each for each in found if each["remote"] == place and each["state"] == "ESTABLISHED")
            assert near["rtt"] >= 0
            far = next(each for each in found if each["local"] == place and each["state"] == "ESTABLISHED")
            assert far["rx"] == 10


@pytest.mark.parametrize("uses", [True, False])
def test_a_rank_that_has_an_rdma_device_open(uses: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """NCCL has one open unless it uses sockets; the adapters are those of the host."""
    (tmp_path / "infiniband").mkdir()
    pieces: list[dict[str, Any]] = []
    with (tmp_path / "infiniband" / ("uverbs0" if uses else "other")).open("w"):
        collect_snapshot({"brief": True}, {"0": os.getpid()}, {"0": os.getpid()}, 1.0, pieces.append)
    found = {name: value for piece in pieces for name, value in piece.items()}
    decoded = decode_node_snapshot({"node": found, "children": found["children"]}, {"0": 3}, 0.0)
    assert decoded.ranks[3].rdma is uses
    assert decoded.hcas == tuple(sorted(each.name for each in Path("/sys/class/infiniband").glob("*")))


def test_a_whole_look_and_how_it_is_read() -> None:
    """Processes, the node, an address that refuses, a disk: piece by piece, in less than the time that it has."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pieces: list[dict[str, object]] = []
    message = {"targets": [["127.0.0.1", port]], "names": ["localhost"], "paths": ["/"]}
    own = {"0": os.getpid()}
    collect_snapshot(message, own, own, 1.0, pieces.append)
    node: dict[str, object] = {}
    children: object = {}
    for piece in pieces:
        children = piece.pop("children", children)
        node.update(piece)
    seen = decode_node_snapshot({"wall": 50.0, "node": node, "children": children}, {"0": 7}, 20.0)
    assert seen.at == 30.0
    assert seen.dials == {("127.0.0.1", port): "refused"}
    assert seen.names["localhost"]
    assert seen.ranks[7].process is not None
    assert seen.ranks[7].process.pid == os.getpid()
    assert seen.hung == ""
    assert {disk.path for disk in seen.disks} >= {"/", "/dev/shm"}
    assert seen.cores
    assert seen.quota == "" or Path(seen.quota.raw()).exists()


@pytest.mark.parametrize(
    "given",
    [
        None,
        [],
        {"children": {"0": {"state": 7, "sockets": "no", "flight": {"groups": {"0": {"entries": [[1], 3]}}}}}},
        {"node": {"links": [], "mounts": [1, ["a"]], "dials": [["x", "y", 3]], "cores": -1, "load": "nan"}},
        {"wall": float("nan"), "children": {"9": {}}},
    ],
)
def test_an_answer_that_makes_no_sense(given: object) -> None:
    """What is of another kind than it should be is left out; nothing is raised."""
    seen = decode_node_snapshot(given, {"0": 0}, 0.0)
    assert seen.cores is None
    assert seen.mounts == ()


def test_how_many_were_killed_for_memory_is_known_or_unknown() -> None:
    """A count, or None where the kernel keeps none."""
    assert node_state.count_oom_kills() is None or node_state.count_oom_kills() >= 0  # type: ignore[operator]


DUMP = """Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait

Current thread 0x00007f02 (most recent call first):
  File "/x/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/x/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/train.py", line 140 in step
  File "/home/me/train.py", line 160 in <module>
"""


def test_the_main_thread_and_the_line_that_is_the_users() -> None:
    """The last thread of a dump is the main one; libraries are not where one looks."""
    frames = parse_main_thread(Untrusted(DUMP))
    assert str(find_user_frame(frames)) == "train.py:140 in step"
    assert classify_activity(frames) == "collective"
    assert parse_main_thread(NO_TEXT) == ()


def test_a_purpose_is_told_before_a_way_of_waiting() -> None:
    """A barrier in a checkpoint is a checkpoint."""
    frames = parse_main_thread(Untrusted(DUMP.replace("in step", "in save_checkpoint")))
    assert classify_activity(frames) == "checkpoint"
