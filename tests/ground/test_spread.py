"""Spreading on four real hosts with disks of their own: the same files everywhere, whatever happens on the way."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from deadlines import slowness, wait_until, within

from aboard.sandbox import Host, Sandbox
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.host.disk import DiskFull
from aboard.sandbox.faults.host.processes import PowerLoss
from aboard.sandbox.faults.network.firewall import FirewallDrop
from aboard.sandbox.faults.network.links import LinkRateLimit

pytestmark = pytest.mark.ground

NODES = ("n1", "n2", "n3", "n4")
DRIVER = (Path(__file__).parent / "drivers" / "spread_head.py").read_text()
FOLDER = "/private/model"
MB = 1_000_000
# Made on the head; random, since what can be squeezed would flatter a compressed link.
MAKE = """
import os, sys
os.makedirs(sys.argv[1], exist_ok=True)
for number, size in enumerate(sys.argv[2:]):
    with open(f"{sys.argv[1]}/{number:05d}.bin", "wb") as file:
        file.write(os.urandom(int(size)))
"""


@pytest.fixture
def clean(box: Sandbox) -> Iterator[None]:
    """What a test leaves on the disks is gone after it."""
    yield
    for host in (box.head, *box.nodes):
        host.run(["sh", "-c", f"rm -rf {FOLDER} /shared/model ~/.cache/aboard ~/hashes.json"])


def made(box: Sandbox, *sizes: int) -> None:
    box.head.run([sys.executable, "-c", MAKE, FOLDER, *map(str, sizes)])


@contextmanager
def sending(box: Sandbox, to: str = FOLDER, nodes: tuple[str, ...] = NODES) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", DRIVER, FOLDER, to, *nodes]
    with box.head.popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The last line: what came of it."""
    assert process.stdout is not None
    last: dict[str, Any] = [json.loads(line) for line in process.stdout][-1]
    return last


def spread(box: Sandbox, to: str = FOLDER, nodes: tuple[str, ...] = NODES) -> dict[str, Any]:
    with sending(box, to, nodes) as process:
        return told(process)


def until_half(process: subprocess.Popen[str], node: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        heard = json.loads(line)
        assert "code" not in heard, heard
        if heard["node"] == node and heard["phase"] == "sending" and heard["done"] > heard["total"] / 2:
            return
    pytest.fail("it ended before it was half done")


def sums(host: Host, folder: str = FOLDER) -> str:
    return host.run(["sh", "-c", f"cd {folder} && sha256sum -- *"]).stdout


def agents(host: Host) -> list[int]:
    """The processes of ours on a host, by their first line of Python."""
    found = []
    for pid in host.pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"-ISc" in words and b"sh" not in words[0]:
            found.append(pid)
    return found


def test_every_node_ends_with_the_same(box: Sandbox, clean: None) -> None:
    """All nodes have the head's hashes; who has a file right is sent nothing of it, and a damaged one is replaced."""
    made(box, 3 * MB, 0, 5 * MB)
    head = sums(box.head)
    assert head.count("\n") == 3
    first = spread(box, nodes=("n1", "n2"))
    assert {name: node["sent"] for name, node in first["nodes"].items()} == {"n1": 8 * MB, "n2": 8 * MB}
    # One byte in the middle, and the same size and time of change as before.
    edit = f"touch -r 00002.bin /tmp/when; printf x | dd of=00002.bin bs=1 seek={MB} conv=notrunc"
    box.host("n2").run(["sh", "-c", f"cd {FOLDER} && {edit} && touch -r /tmp/when 00002.bin; touch extra.txt"])
    assert sums(box.host("n2")) != head
    second = spread(box)["nodes"]
    assert {name: node["sent"] for name, node in second.items()} == {"n1": 0, "n2": 5 * MB, "n3": 8 * MB, "n4": 8 * MB}
    assert [node["had"] for node in second.values()] == [8 * MB, 3 * MB, 0, 0]
    assert second["n2"]["extra"] == [f"{FOLDER}/extra.txt"]
    box.host("n2").run(["rm", f"{FOLDER}/extra.txt"])
    assert [sums(box.host(name)) for name in NODES] == [head] * 4
    assert box.host("n3").run(["ls", "-A", FOLDER]).stdout.split() == ["00000.bin", "00001.bin", "00002.bin"]
    assert agents(box.host("n3")) == []


def test_a_killed_head_goes_on_where_it_was(box: Sandbox, clean: None) -> None:
    """What came before the kill is not sent again."""
    made(box, 60 * MB, 60 * MB)
    with sending(box) as process:
        until_half(process, "n2")
        process.send_signal(signal.SIGKILL)
    for host in box.nodes:
        wait_until(lambda host=host: not agents(host), 10)  # type: ignore[misc]
    there = {host.name: int(host.run(["du", "-sb", "--apparent-size", FOLDER]).stdout.split()[0]) for host in box.nodes}
    done = spread(box)["nodes"]
    for name in NODES:
        # The directory itself counts a few bytes.
        assert 120 * MB - there[name] <= done[name]["sent"] <= 120 * MB - there[name] + 10_000
    assert done["n2"]["sent"] <= 60 * MB
    assert [sums(host) for host in box.nodes] == [sums(box.head)] * 4


def test_a_cut_is_gone_through(box: Sandbox, clean: None) -> None:
    """An agent that is killed while it receives is put there again, and goes on where it was."""
    made(box, 80 * MB)
    with sending(box) as process:
        until_half(process, "n3")
        for pid in agents(box.host("n3")):
            # The porter leaves by itself when its bridge is gone.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        done = told(process)["nodes"]
    assert done["n3"]["sent"] <= 90 * MB
    assert [sums(host) for host in box.nodes] == [sums(box.head)] * 4


def test_a_damaged_part_is_sent_again(box: Sandbox, clean: None) -> None:
    """What a crash left of a file may be damaged: its hash shows it, and the file is sent from its beginning."""
    made(box, 20 * MB)
    sha256 = sums(box.head).split()[0]
    box.host("n1").run(["sh", "-c", f"mkdir {FOLDER}; head -c {10 * MB} /dev/zero > {FOLDER}/.aboard-{sha256}.part"])
    done = spread(box, nodes=("n1",))
    assert done["nodes"]["n1"]["sent"] == 30 * MB
    assert sums(box.host("n1")) == sums(box.head)


def test_a_full_disk_is_named_before_anything_is_sent(box: Sandbox, clean: None) -> None:
    """The node, what is needed and what is free; no other node has got anything by then."""
    made(box, 30 * MB)
    with inject_temporarily(box, box.host("n3"), DiskFull(path="/private", free_mib=20)):
        said = spread(box)
    assert said["code"] == "spread-disk-full"
    assert said["seen"].startswith("n3: 93 MiB is needed in /private, but only 20 MiB is free")
    assert "# on n3" in said["fix"]
    assert box.host("n1").run(["ls", FOLDER]).returncode != 0


def test_a_disk_that_fills_up_meanwhile_is_named(box: Sandbox, clean: None) -> None:
    """There was room when it began; what has come stays, and goes on once there is room again."""
    made(box, 30 * MB)
    n3 = box.host("n3")
    with (
        inject_temporarily(box, n3, DiskFull(path="/private", free_mib=150), LinkRateLimit(mbit=80)),
        sending(box, nodes=("n3",)) as process,
    ):
        until_half(process, "n3")
        n3.run(["sh", "-c", "cat /dev/zero > /private/fill"])
        said = told(process)
        n3.run(["rm", "/private/fill"])
    assert (said["code"], said["seen"]) == (
        "spread-disk-full",
        f"n3: {FOLDER} can't be written: No space left on device",
    )
    assert spread(box, nodes=("n3",))["nodes"]["n3"]["sent"] < 20 * MB
    assert sums(n3) == sums(box.head)


def test_nodes_that_may_not_be_written_to_are_named_together(box: Sandbox, clean: None) -> None:
    """One error names all of them, and the directory in which the user may not write."""
    made(box, 1000)
    said = spread(box, to="/usr/lib/model")
    assert said["code"] == "spread-denied"
    assert [line.split(":")[0] for line in said["seen"].splitlines()] == list(NODES)
    assert "no write permission in /usr/lib" in said["seen"]


def test_a_file_in_the_way_is_named(box: Sandbox, clean: None) -> None:
    """A directory can't be made where there is a file."""
    made(box, 1000)
    box.host("n4").run(["touch", "/private/taken"])
    try:
        said = spread(box, to="/private/taken", nodes=("n4",))
    finally:
        box.host("n4").run(["rm", "/private/taken"])
    assert (said["code"], said["seen"][:19]) == ("spread-path", "n4: /private/taken ")


def test_a_shared_disk_is_sent_to_once(box: Sandbox, clean: None) -> None:
    """Nodes that see the same directory get one copy between them, and each proves it by hash."""
    made(box, 5 * MB)
    done = spread(box, to="/shared/model")["nodes"]
    assert [node["sent"] for node in done.values()] == [5 * MB, 0, 0, 0]
    assert [node["same_disk_as"] for node in done.values()] == [None, "n1", "n1", "n1"]
    assert sums(box.host("n4"), "/shared/model") == sums(box.head)
    assert box.head.run(["ls", "-A", "/shared/model"]).stdout.split() == ["00000.bin"]


def test_a_lost_node_is_named(box: Sandbox, clean: None) -> None:
    """A node without power in the middle of it ends it within a minute, with the node's name."""
    made(box, 80 * MB)
    with sending(box) as process:
        until_half(process, "n2")
        with within(60), inject_temporarily(box, box.host("n2"), PowerLoss()):
            said = told(process)
    assert (said["code"], said["seen"][:35]) == ("spread-lost", "n2: lost the connection 3 times whi")


def test_beats_are_not_delayed_by_a_slow_link(box: Sandbox, clean: None) -> None:
    """On a link of 2 MB/s that is full of a file, an answer still comes within two seconds."""
    made(box, 10 * MB)
    with inject_temporarily(box, box.host("n1"), LinkRateLimit(mbit=16)):
        done = spread(box, nodes=("n1",))
    assert done["nodes"]["n1"]["sent"] == 10 * MB
    assert done["seconds"] > 3
    assert done["slowest"] < 2 * slowness()


def test_the_head_holds_little_of_what_it_sends(box: Sandbox, clean: None) -> None:
    """What is under way is bounded, and all else is the interpreter's own; the second time nothing is sent."""
    made(box, 50 * MB, 50 * MB)
    first = spread(box)
    assert first["memory"] < 120 * MB
    assert [node["sent"] for node in spread(box)["nodes"].values()] == [0] * 4


def test_nodes_pass_pieces_on_where_a_firewall_lets_them(box: Sandbox, clean: None) -> None:
    """A node that takes no connections makes its own; one that can do neither is named, and served by the head."""
    made(box, 20 * MB)
    head, n3 = sums(box.head), box.host("n3")
    with inject_temporarily(box, n3, FirewallDrop(ports="1024-65535")):
        done = spread(box, nodes=("--peers", "n1", "n2", "n3"))
    assert (sum(node["sent"] for node in done["nodes"].values()), done["findings"]) == (20 * MB, [])
    assert sums(n3) == head
    for node in box.nodes:
        node.run(["sh", "-c", f"rm -rf {FOLDER} ~/.cache/aboard"])
    with inject_temporarily(box, n3, FirewallDrop(ports="1024-65535", way="both")):
        done = spread(box, nodes=("--peers", "n1", "n2", "n3"))
    assert [sums(box.host(name)) for name in ("n1", "n2", "n3")] == [head] * 3
    assert (done["nodes"]["n3"]["sent"], done["nodes"]["n3"]["from_peers"]) == (20 * MB, 0)
    assert done["nodes"]["n1"]["sent"] + done["nodes"]["n2"]["sent"] == 20 * MB
    (finding,) = done["findings"]
    assert (finding["code"], finding["nodes"]) == ("peer-blocked", ["n3"])
    assert finding["seen"].startswith("n3 has no connection to n1, n2 on port 29500 or ")
    assert agents(n3) == []
