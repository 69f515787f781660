"""Nodes that the head can't reach, on real hosts, in runs whose lease is ten minutes: lost or not, and what is left."""

from collections.abc import Iterator

import pytest
from deadlines import wait_until
from launching import Launches, build_sandbox

from aboard.core.run.recovery.lost_nodes import LOST_SECONDS

pytestmark = [pytest.mark.ground, pytest.mark.xdist_group("recovery")]

# Ranks of the first attempt wait for the folder's end file; rank 0 first fails as a peer does when `lost` appears.
JOB = """
import os, pathlib, socket, time
folder, count = pathlib.Path.cwd(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("rank", os.environ["RANK"], "on", os.uname().nodename, "restart", count, flush=True)
deadline = time.monotonic() + 600
while not (folder / f"end-{count}").exists() and time.monotonic() < deadline:
    if os.environ["RANK"] == "0" and count == 0 and (folder / "lost").exists():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.77.0.3]:26523")
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Launches]:
    """Four nodes with one rank each, of which the last is a spare."""
    with build_sandbox("lost", nodes=4, slots=1) as made:
        launches = Launches(made)
        launches.put("waits.py", JOB)
        yield launches


def _start(hosts: Launches) -> str:
    """A detached run on n1, n2 and n3 whose ranks have started."""
    hosts.box.head.run(["sh", "-c", f"rm -f {hosts.folder}/end-* {hosts.folder}/lost"]).check_returncode()
    done = hosts.aboard("launch", "--detach", "--spares", "1", "--restarts", "3", "--", "waits.py")
    assert done.returncode == 0, done.stdout + done.stderr
    run = hosts.newest()
    wait_until(lambda: _count(hosts, run, "started") == 3, 30, lambda: f"the start: {hosts.events(run)}")
    return run


def _count(hosts: Launches, run: str, kind: str, node: str = "") -> int:
    return sum(each["kind"] == kind and node in ("", each["node"]) for each in hosts.events(run))


def _see_end(hosts: Launches, run: str) -> None:
    """Lets the ranks of the second attempt end, and expects that they finish well and leave nothing."""
    hosts.put("end-1", "")
    wait_until(lambda: _count(hosts, run, "finished") == 1, 30, lambda: f"the end: {hosts.events(run)[-5:]}")
    assert next(each for each in hosts.events(run) if each["kind"] == "finished")["data"]["code"] == 0
    assert "rank 2 on n4 restart 1" in hosts.aboard("logs", run, "--rank", "2").stdout
    assert hosts.orphans(run) == {}
    assert hosts.orphans(f"{run}.2") == {}


def _cut(hosts: Launches, peer: str = "0.0.0.0/0") -> None:
    """Packets between n3 and this address, or all of its packets, vanish."""
    for chain, side in (("INPUT", "-s"), ("OUTPUT", "-d")):
        hosts.box.host("n3").run(["iptables", "-I", chain, side, peer, "-j", "DROP"], root=True).check_returncode()


def _heal(hosts: Launches) -> None:
    hosts.box.host("n3").run(["iptables", "-F"], root=True).check_returncode()


def test_a_node_is_lost_when_its_peers_can_not_reach_it_either(hosts: Launches) -> None:
    """Without its link to the head it trains on; without any, a spare takes over, and its old ranks are ended later."""
    run = _start(hosts)
    _cut(hosts, hosts.box.head.address)
    wait_until(lambda: _count(hosts, run, "cut", "n3") == 1, 20, "the cut is noticed")
    cut = next(each["at"] for each in hosts.events(run) if each["kind"] == "cut")
    # Measurements of the other nodes show that time passes.
    samples = hosts.runs / run / "samples.jsonl"
    wait_until(lambda: samples.stat().st_mtime > cut + LOST_SECONDS + 5, 3 * LOST_SECONDS, "time passes")
    assert _count(hosts, run, "gone") == 0
    _heal(hosts)
    wait_until(lambda: _count(hosts, run, "held", "n3") == 2, 20, "it is back")
    _cut(hosts)
    wait_until(lambda: _count(hosts, run, "started", "n4") == 1, 2 * LOST_SECONDS, lambda: str(hosts.events(run)[-9:]))
    gone = next(each for each in hosts.events(run) if each["kind"] == "gone")
    assert gone["node"] == "n3"
    assert "no connection from n[1-2] either" in gone["data"]["why"]
    assert list(hosts.orphans(run)) == ["n3"]
    _heal(hosts)
    wait_until(lambda: _count(hosts, run, "old_ended", "n3") == 1, 20, lambda: str(hosts.events(run)[-9:]))
    wait_until(lambda: hosts.orphans(run) == {}, 10, "no rank of the first attempt is left")
    _see_end(hosts, run)


def test_a_lost_node_is_replaced_although_a_peer_failed_first(hosts: Launches) -> None:
    """With the power off on n3, rank 0 loses its connection: n3 is replaced, and not the node that reported it."""
    run = _start(hosts)
    hosts.box.host("n3").kill_power()
    try:
        hosts.put("lost", "")
        wait_until(lambda: _count(hosts, run, "started", "n4") == 1, 3 * LOST_SECONDS, lambda: str(hosts.events(run)))
        recovering = next(each for each in hosts.events(run) if each["kind"] == "recovering")
        assert recovering["data"]["why"] == "n3 failed: n4 takes over"
        _see_end(hosts, run)
    finally:
        hosts.box.host("n3").power_on()
