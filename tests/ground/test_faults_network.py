"""Faults between hosts: each is seen by the ordinary user of a peer, and is gone when it is healed."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from deadlines import slowness, wait_until

from aboard.sandbox import Host, Sandbox
from aboard.sandbox.faults import inject_temporarily, list_active_faults
from aboard.sandbox.faults.network.firewall import FirewallDrop, FirewallReject
from aboard.sandbox.faults.network.links import LinkDelay, LinkDown, LinkRateLimit, MtuBlackHole, PacketLoss

pytestmark = pytest.mark.ground

# Counts what comes until the end, and says how much that was.
SERVER = """
import socket, sys, threading
def serve(link):
    count = 0
    while data := link.recv(1 << 20):
        count += len(data)
        if data == b"?": link.sendall(b"!")
    link.sendall(str(count).encode()); link.close()
server = socket.create_server(("", int(sys.argv[1])), backlog=64)
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
# Connects, sends so many bytes in so large pieces, and prints what happened and how long it took.
CLIENT = """
import socket, sys, time
host, port, size, piece, timeout = sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5])
start = time.monotonic()
try:
    link = socket.create_connection((host, port), timeout)
    for sent in range(0, size, piece):
        link.sendall(bytes(min(piece, size - sent)))
    link.shutdown(socket.SHUT_WR)
    answer = link.recv(100).decode()
except OSError as error:
    answer = type(error).__name__ if error.errno is None else __import__("errno").errorcode[error.errno]
print(answer, time.monotonic() - start)
"""
# Holds a connection open and sends a word whenever it is told to.
HOLDER = """
import socket, sys
link = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
link.settimeout(2)
print("open", flush=True)
for line in sys.stdin:
    try:
        link.sendall(b"?")
        print(link.recv(1).decode(), flush=True)
    except OSError as error:
        print("silence", flush=True)
"""


@pytest.fixture(autouse=True)
def well(box: Sandbox) -> Iterator[None]:
    """Each test leaves the shared hosts as it found them."""
    yield
    assert list_active_faults(box) == {}


@contextmanager
def serving(host: Host, port: int = 29500) -> Iterator[None]:
    process = host.popen(["python3", "-c", SERVER, str(port)], stdout=subprocess.PIPE, text=True)
    try:
        assert said(process) == "ready"
        yield
    finally:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def send(
    source: Host, target: str, port: int = 29500, *, size: int = 0, piece: int = 65536, timeout: float = 1.5
) -> tuple[str, float]:
    """What came of it, and after how many seconds."""
    argv = ["python3", "-c", CLIENT, target, str(port), str(size), str(piece), str(timeout)]
    answer, seconds = source.run(argv, timeout=timeout + 30).stdout.split()
    return answer, float(seconds)


def connects(source: Host, target: str, port: int = 29500) -> str:
    return send(source, target, port)[0]


def round_trip(source: Host, target: str, *, count: int = 5) -> float:
    """The shortest of some pings, in milliseconds: a busy machine adds to the others."""
    output = source.run(["ping", "-c", str(count), "-i", "0.05", "-W", "3", target]).stdout
    return min(float(value) for value in re.findall(r"time=([0-9.]+)", output))


def test_drop(box: Sandbox) -> None:
    """A dropped packet is silence on this host, and nothing on the next."""
    n2, n3 = box.host("n2"), box.host("n3")
    with serving(n2), serving(n3):
        with inject_temporarily(box, n2, FirewallDrop()):
            assert connects(box.head, "n2") == "TimeoutError"
            assert connects(box.head, "n3") == "0"
            # A host's talk to itself passes no firewall.
            assert connects(n2, "127.0.0.1") == "0"
        assert connects(box.head, "n2") == "0"


@pytest.mark.parametrize(
    ("fault", "error"),
    [(FirewallReject(), "ECONNREFUSED"), (FirewallReject(answer="host-prohibited"), "EHOSTUNREACH")],
    ids=["tcp-reset", "host-prohibited"],
)
def test_reject(box: Sandbox, fault: FirewallReject, error: str) -> None:
    """A reject is told at once, each kind as what it is."""
    n2 = box.host("n2")
    with serving(n2):
        with inject_temporarily(box, n2, fault):
            answer, seconds = send(box.head, "n2")
            assert (answer, seconds < slowness()) == (error, True)
        assert connects(box.head, "n2") == "0"


def test_ports_and_peers(box: Sandbox) -> None:
    """Only the port and the peer that were named are shut."""
    n1, n2 = box.host("n1"), box.host("n2")
    with serving(n2), serving(n2, 29600), inject_temporarily(box, n2, FirewallDrop(ports="29500-29599", peer="n[1,3]")):
        assert connects(n1, "n2") == "TimeoutError"
        assert connects(n1, "n2", 29600) == "0"
        assert connects(box.head, "n2") == "0"


@pytest.mark.parametrize("way", ["in", "out"])
def test_one_way(box: Sandbox, way: str) -> None:
    """A firewall that blocks one way lets the answers of the other way through, to high ports too."""
    n1, n2 = box.host("n1"), box.host("n2")
    with (
        serving(n1),
        serving(n2),
        inject_temporarily(box, n2, FirewallDrop(ports="1024-65535", way="in" if way == "in" else "out")),
    ):
        into, out_of = connects(n1, "n2"), connects(n2, "n1")
        assert {"in": into, "out": out_of}[way] == "TimeoutError"
        assert {"in": out_of, "out": into}[way] == "0"


@pytest.mark.parametrize(("open_too", "word"), [(False, "!"), (True, "silence")])
def test_open_connections(box: Sandbox, open_too: bool, word: str) -> None:  # noqa: FBT001 - a case of the parametrization
    """A connection that is open stays open, unless it is to be cut, too."""
    n2 = box.host("n2")
    with serving(n2):
        holder = box.head.popen(
            ["python3", "-c", HOLDER, "n2", "29500"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert said(holder) == "open"
            with inject_temporarily(box, n2, FirewallDrop(ports="29500", open_too=open_too)):
                tell(holder, "go")
                assert said(holder) == word
        finally:
            holder.kill()
            holder.communicate()


def test_link_down(box: Sandbox) -> None:
    """A pulled cable shows on the card, and on this card only."""
    n2, n3 = box.host("n2"), box.host("n3")
    carrier = ["cat", "/sys/class/net/eth0/carrier"]
    with serving(n2):
        with inject_temporarily(box, n2, LinkDown()):
            assert n2.run(carrier).stdout == "0\n"
            assert n3.run(carrier).stdout == "1\n"
            assert connects(box.head, "n2") in {"TimeoutError", "EHOSTUNREACH"}
        assert n2.run(carrier).stdout == "1\n"
        assert connects(box.head, "n2") == "0"


def test_rate(box: Sandbox) -> None:
    """What comes in is as slow as was asked for, what goes out isn't."""
    n1, n2 = box.host("n1"), box.host("n2")
    size, mbit = 6_000_000, 24.0
    with serving(n1), serving(n2):
        with inject_temporarily(box, n2, LinkRateLimit(mbit=mbit, way="in")):
            answer, seconds = send(n1, "n2", size=size, timeout=20)
            assert answer == str(size)
            assert 0.8 * mbit / slowness() < size * 8 / 1e6 / seconds < 1.2 * mbit
            assert send(n2, "n1", size=size, timeout=20)[1] < seconds / 2
        assert send(n1, "n2", size=size, timeout=20)[1] < seconds / 2


def test_rate_both_ways(box: Sandbox) -> None:
    """Both ways means the way out, too."""
    n1, n2 = box.host("n1"), box.host("n2")
    with serving(n1), inject_temporarily(box, n2, LinkRateLimit(mbit=24)):
        assert 18 / slowness() < 3_000_000 * 8 / 1e6 / send(n2, "n1", size=3_000_000, timeout=20)[1] < 30


def test_loss(box: Sandbox) -> None:
    """About as many packets are lost as was asked for, then none."""
    n2 = box.host("n2")

    def lost() -> float:
        output = box.head.run(["ping", "-q", "-c", "400", "-i", "0.005", "-W", "1", "n2"]).stdout
        found = re.search(r"([0-9.]+)% packet loss", output)
        assert found, output
        return float(found[1])

    with inject_temporarily(box, n2, PacketLoss(percent=20, way="in")):
        assert 12 <= lost() <= 28
    assert lost() == 0


@pytest.mark.parametrize("ms", [20.0, 80.0])
def test_delay(box: Sandbox, ms: float) -> None:
    """A round trip takes so much longer, within a fifth; for TCP as for ping; on this host only."""
    n1, n2 = box.host("n1"), box.host("n2")
    with serving(n2):
        with inject_temporarily(box, n2, LinkDelay(ms=ms)):
            assert 0.8 * ms < round_trip(box.head, "n2") < 1.2 * ms * slowness()
            # To connect is one round trip, to say all and hear the answer is the second.
            assert 1.4 * ms < send(n1, "n2", timeout=10)[1] * 1000 < 2.6 * ms * slowness()
            assert round_trip(box.head, "n1") < ms / 4
        assert round_trip(box.head, "n2") < ms / 4


def test_delay_carries_data(box: Sandbox) -> None:
    """Much data passes a long link whole, with no packet lost or stuck."""
    n1, n2 = box.host("n1"), box.host("n2")
    with serving(n2), inject_temporarily(box, n2, LinkDelay(ms=20)):
        assert send(n1, "n2", size=50_000_000, timeout=40)[0] == "50000000"


def test_mtu_black_hole(box: Sandbox) -> None:
    """Large packets vanish, small ones pass, however many of them are sent at once."""
    n1, n2 = box.host("n1"), box.host("n2")

    def ping(size: int) -> int:
        return n1.run(["ping", "-c", "1", "-W", "1", "-M", "do", "-s", str(size), "n2"]).returncode

    with serving(n2):
        with inject_temporarily(box, n2, MtuBlackHole(limit=1400)):
            assert (ping(1300), ping(1460)) == (0, 1)
            assert send(n1, "n2", size=1000, piece=1000)[0] == "1000"
            assert send(n1, "n2", size=1_000_000)[0] == "TimeoutError"
        with inject_temporarily(box, n2, MtuBlackHole(limit=1500)):
            # The kernel hands bundles of up to 64 KB on as one; a black hole that counts those swallows everything.
            assert send(n1, "n2", size=1_000_000, timeout=10)[0] == "1000000"
            assert send(n2, "n2", size=1_000_000, timeout=10)[0] == "1000000"
        assert ping(1460) == 0
        assert send(n1, "n2", size=1_000_000)[0] == "1000000"


def test_machine_is_untouched(box: Sandbox) -> None:
    """The network of the machine itself has no rule, queue or card more than before."""
    n2 = box.host("n2")

    def looks() -> list[str]:
        commands = (["nft", "list", "ruleset"], ["tc", "qdisc"], ["ip", "-o", "address"])
        return [subprocess.run(argv, capture_output=True, text=True, check=True).stdout for argv in commands]

    before = looks()
    with inject_temporarily(
        box, n2, FirewallDrop(), LinkRateLimit(mbit=5), LinkDelay(ms=10), PacketLoss(percent=1), LinkDown()
    ):
        assert looks() == before


def test_two_faults_heal_apart(box: Sandbox) -> None:
    """Of two faults on one host, healing one leaves the other."""
    n2 = box.host("n2")
    with serving(n2), inject_temporarily(box, n2, LinkDelay(ms=40)):
        with inject_temporarily(box, n2, FirewallDrop(ports="29500")):
            assert connects(box.head, "n2") == "TimeoutError"
        assert connects(box.head, "n2") == "0"
        assert 32 < round_trip(box.head, "n2") < 48 * slowness()
        with (
            inject_temporarily(box, n2, FirewallDrop(ports="29500", peer="n1")),
            inject_temporarily(box, n2, FirewallDrop(ports="29501")),
        ):
            pass
        assert connects(box.host("n1"), "n2") == "0"


def test_fabric_only(box_name: str) -> None:
    """A fault of the fabric leaves the management network alone."""
    with Sandbox.up(box_name, nodes=2, fabric=True) as small:
        n1, n2 = small.nodes
        with serving(n2):
            with inject_temporarily(small, n2, FirewallDrop(network="fabric")):
                assert connects(n1, "n2i") == "TimeoutError"
                assert connects(n1, "n2") == "0"
            with inject_temporarily(small, n2, LinkDown(network="fabric")):
                assert n2.run(["cat", "/sys/class/net/eth0/carrier", "/sys/class/net/eth1/carrier"]).stdout == "1\n0\n"
            with inject_temporarily(small, n2, LinkDelay(ms=30, network="fabric")):
                assert 24 < round_trip(n1, "n2i") < 36 * slowness()
                assert round_trip(n1, "n2") < 10
            wait_until(lambda: connects(n1, "n2i") == "0", 10)
