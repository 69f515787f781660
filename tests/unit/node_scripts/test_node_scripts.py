"""Scripts for nodes, by importing them: what subprocesses in the tests of each check would show only as a whole."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aboard.node_scripts import container_view, rank_capabilities, several_ranks, software_inventory, storage_survey
from aboard.node_scripts.rank_roster import Roster, open_listener
from aboard.node_scripts.rank_watch import collect_nccl_log, decode_address, list_blocked_addresses
from aboard.node_scripts.script_source import RUN_NEXT_WORD, bundle_scripts, read_script

RANK = ("rank_program", "rank_measurement", "rank_watch", "rank_roster")


def _speak(port: int, **message: object) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 5)
    connection.sendall(json.dumps({"token": "t", **message}).encode() + b"\n")
    return connection


def _hear(connection: socket.socket) -> Any:
    with connection, connection.makefile("rb") as lines:
        return json.loads(lines.readline())


@contextmanager
def _call_roster(meet: float = 30) -> Iterator[int]:
    """The port of a roster of two."""
    listener = open_listener(0)
    roster = Roster(listener, "t", world=2, meet=meet, load=30)
    roster.start()
    try:
        yield listener.getsockname()[1]
    finally:
        roster.over.set()
        roster.join()
        for key in list(roster._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()


def test_ranks_go_together() -> None:
    """Nobody goes before all are ready; then all get the port of rank 0's store."""
    with _call_roster() as port:
        ranks = [_speak(port, rank=rank, here=True, ready=1234 if rank == 0 else 0) for rank in range(2)]
        assert [_hear(rank) for rank in ranks] == [{"go": 1234}] * 2


def test_a_rank_that_leaves_ends_all() -> None:
    """The others hear who is gone."""
    with _call_roster() as port, _speak(port, rank=0, here=True) as first:
        _speak(port, rank=1, here=True).close()
        assert _hear(first) == {"off": {"phase": "gone", "absent": [1]}}


def test_ranks_that_never_come_are_named() -> None:
    """After the time to meet, whoever is here hears who is not."""
    with _call_roster(meet=0.3) as port:
        assert _hear(_speak(port, rank=0, here=True)) == {"off": {"phase": "meet", "absent": [1]}}


def test_addresses_are_decoded_from_the_kernels_table() -> None:
    """Words are in the machine's byte order; an IPv4 address in IPv6 is itself."""
    assert decode_address("0100007F") == "127.0.0.1"
    assert decode_address("0000000000000000FFFF00000100007F") == "127.0.0.1"
    assert decode_address("00000000000000000000000001000000") == "::1"
    assert list_blocked_addresses() == []


def test_the_log_of_nccl_is_cut_and_removed(tmp_path: Path) -> None:
    """Known lines, each kind a few times; the folder is gone afterwards."""
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "a").write_text("noise\n" + "x NCCL WARN y\n" * 100 + "Using network IB\n")
    assert collect_nccl_log(str(folder)) == ["x NCCL WARN y"] * 40 + ["Using network IB"]
    assert not folder.exists()
    assert collect_nccl_log("") == collect_nccl_log(str(folder)) == []


def test_a_rank_that_ends_without_a_report_is_gone() -> None:
    """Its last line on stderr is the error; reports of others are passed on."""
    code = ["import json, sys; t = json.loads(sys.argv[1]); t['rank'] == 4 and sys.exit('no disk'); print('{}')"]
    reports = several_ranks.run_ranks({"rank": 3, "locals": 2, "within": 60}, code)
    assert reports == [{}, {"rank": 4, "phase": "gone", "error": "no disk"}]


def test_capabilities_count_only_visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the driver there are none; a port is free, and torch is found without importing it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    found = rank_capabilities.describe_capabilities()
    assert found["gpus"] == (2 if os.path.isdir("/proc/driver/nvidia/gpus") else 0)  # noqa: PTH112
    assert rank_capabilities.LOWEST_PORT <= int(str(found["port"])) < 30_000


def test_mounts_are_found_by_their_longest_path() -> None:
    """A directory belongs to the nearest mount above it; without any, to an unknown one at the root."""
    mounts = {"/": {"point": "/", "type": "ext4", "source": "sda", "network": False}}
    mounts["/data"] = {"point": "/data", "type": "nfs", "source": "s:/x", "network": True}
    assert storage_survey.add_mount({}, "/data/a/b", mounts)["mount"] == "/data"
    assert storage_survey.add_mount({"real": "/home/x"}, "/data/a", mounts)["mount"] == "/"
    assert storage_survey.add_mount({}, "/x", {})["type"] == ""
    assert "/proc" in storage_survey.list_mounts()


def test_a_child_that_does_not_answer_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed and left; an error of another is its answer."""
    monkeypatch.setattr(storage_survey, "MOUNT_SECONDS", 0.3)

    def fail() -> dict[str, Any]:
        raise OSError(5, "no disk")

    def wait() -> dict[str, Any]:
        threading.Event().wait(60)
        return {}

    jobs = {"a": fail, "b": wait}
    assert storage_survey.run_in_children(jobs) == {"a": {"error": "no disk", "errno": 5}, "b": {"silent": True}}


def test_large_images_are_hashed_in_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the size or of a sample changes the hash."""
    monkeypatch.setattr(container_view, "SAMPLES", 2)
    monkeypatch.setattr(container_view, "SAMPLE_BYTES", 4)
    hashes = set()
    for content in (b"aaaa-0000-bbbb", b"aaaa-0000-bbbX", b"aaaa-00000-bbbb", b"aaaa-1111-bbbb"):
        (tmp_path / "image").write_bytes(content)
        hashes.add(container_view.hash_image(str(tmp_path / "image"), len(content)))
    # The last differs from the first only between the samples.
    assert len(hashes) == 3


def test_secrets_are_hidden_by_the_pattern_that_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal values have equal digests; without a pattern, everything is hidden."""
    monkeypatch.setenv("HF_THING", "x")
    assert software_inventory.list_variables("TOKEN")["HF_THING"] == "x"
    hidden = software_inventory.list_variables("THING")["HF_THING"]
    assert hidden == software_inventory.list_variables("")["HF_THING"] == "hidden 2d711642b726b044"


def test_a_script_ignores_the_working_directory(tmp_path: Path) -> None:
    """A json.py in a cloned repository is not what a script imports, not even first of all."""
    (tmp_path / "json.py").write_text("raise SystemExit('imported')")
    argv = [sys.executable, "-c", RUN_NEXT_WORD, read_script("container_view"), "inside", str(tmp_path)]
    ran = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(ran.stdout)["python"] == sys.version.split()[0]


@pytest.mark.ci
def test_two_ranks_measure_and_end() -> None:
    """The bundled modules run as they are sent: both ranks report rows of right sums, and the rate of their pair."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    task = {
        "rank": 0, "locals": 2, "local": 0, "world": 2, "backend": "gloo", "address": "127.0.0.1", "port": port,
        "meet": 60, "load": 120, "silence": 5, "connect": 60, "stall": 60, "what": ["pairs"], "games": [[[0, 1]]],
        "pair": 1024, "sizes": [1024, 4096], "seconds": 0.1, "most": 60, "rounds": 2, "within": 300,
        "defaults": {"OMP_NUM_THREADS": "1"},
    }  # fmt: skip
    words = (read_script("several_ranks"), json.dumps(task), RUN_NEXT_WORD, bundle_scripts(*RANK))
    env = {**os.environ, "ABOARD_CHECK_TOKEN": "t"}
    ran = subprocess.run(
        [sys.executable, "-c", RUN_NEXT_WORD, *words], env=env, cwd="/", capture_output=True, text=True, check=True
    )
    reports = json.loads(ran.stdout)["ranks"]
    assert [(report["rank"], report["phase"], report["wrong"]) for report in reports] == [
        (0, "done", []),
        (1, "done", []),
    ]
    assert [[row[0] for row in report["rows"]] for report in reports] == [["all_reduce"] * 2 + ["all_gather"] * 2] * 2
    assert [list(report["pairs"]) for report in reports] == [["1"], ["0"]]
