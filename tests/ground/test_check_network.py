"""The network's subject on real hosts: what is broken is named, with its node or pair, and green when it is mended."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from launching import build_sandbox

from aboard.core.cluster.node_sets import expand_node_set
from aboard.sandbox import Sandbox
from aboard.sandbox.faults import inject_temporarily
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.host.processes import PortTaken
from aboard.sandbox.faults.network.firewall import FirewallDrop, FirewallReject
from aboard.sandbox.faults.network.links import LinkDown, LinkRateLimit, MtuBlackHole, PacketLoss
from aboard.sandbox.faults.network.name_resolution import UnresolvedName

pytestmark = pytest.mark.ground

ALL = "1024-65535"
NOT_RENDEZVOUS = "1024-29499,29501-65535"

# Checks n1 to nN of which `fabric` says whether their peers reach them there; the rest of the line is an env for n2.
CHECK = """
import asyncio, json, sys
from aboard.doctor.network.subject import SUBJECT
from aboard.doctor.network.mesh_probe import MESH
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.engine.check.check_cluster import check_cluster
count, quick, fabric, env = json.loads(sys.argv[1])
nodes = [
    Node(name=f"n{at}", fabric_address=f"n{at}i" if fabric else None, env=env if at == 2 else {})
    for at in range(1, count + 1)
]
report = asyncio.run(check_cluster(Cluster(nodes=tuple(nodes)), (SUBJECT,), quick=quick))
print(json.dumps({
    "seconds": report.seconds,
    "interfaces": MESH.outcome(report.facts).interfaces,
    "findings": [
        [each.code, each.severity.word, each.nodes, each.seen, each.fix, [under.code for under in each.consequences]]
        for each in report.findings
    ],
}))
"""


class Report:
    """What the check said, above info."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.seconds: float = said["seconds"]
        self.interfaces: dict[str, str] = said["interfaces"]
        self.infos = [finding for finding in said["findings"] if finding[1] == "info"]
        self.findings = [finding for finding in said["findings"] if finding[1] != "info"]

    @property
    def named(self) -> list[tuple[str, set[str]]]:
        return [(finding[0], set(finding[2])) for finding in self.findings]


def check(
    box: Sandbox, *, count: int = 4, quick: bool = True, fabric: bool = False, env: dict[str, str] | None = None
) -> Report:
    asked = json.dumps([count, quick, fabric, env or {}])
    done = box.head.run([sys.executable, "-c", CHECK, asked], timeout=90)
    assert done.returncode == 0, done.stderr
    return Report(json.loads(done.stdout))


@pytest.fixture(scope="module")
def fabric_box() -> Iterator[Sandbox]:
    """Four nodes with a second network: leave them as you found them."""
    with build_sandbox("fabric", nodes=4, fabric=True) as box:
        yield box


@pytest.mark.parametrize(
    ("quick", "times"),
    [(True, 1), (False, 1), *(pytest.param(quick, 3, marks=pytest.mark.nightly) for quick in (True, False))],
    ids=["quick", "full", "quick, three times", "full, three times"],
)
def test_healthy(box: Sandbox, *, quick: bool, times: int) -> None:
    """Nothing at all is said, however often, and each node's interface is known."""
    for _ in range(times):
        report = check(box, quick=quick)
        assert report.findings + report.infos == []
        assert report.interfaces == dict.fromkeys(("n1", "n2", "n3", "n4"), "eth0")


@pytest.mark.xdist_group("fabric")
def test_healthy_with_a_fabric(fabric_box: Sandbox) -> None:
    """The fabric is what was asked for, and what is proposed."""
    report = check(fabric_box, fabric=True, quick=False)
    assert report.findings == []
    assert report.interfaces == dict.fromkeys(("n1", "n2", "n3", "n4"), "eth1")
    (info,) = report.infos
    assert info[0] == "network-interface"
    assert "NCCL_SOCKET_IFNAME: eth1" in info[4]


def test_sixteen_healthy_nodes(make_box: Any) -> None:
    """All pairs of sixteen, without a false alarm."""
    report = check(make_box(nodes=16), count=16)
    assert report.findings + report.infos == []


# Where which fault is put, and what is then named.
CASES: list[tuple[str, Fault, str, set[str]]] = [
    ("n3", FirewallDrop(ports=ALL), "network-dropped", {"n3"}),
    ("n3", FirewallDrop(ports=ALL, way="out"), "network-dropped", {"n3"}),
    ("n3", FirewallDrop(ports="29500"), "network-rendezvous-dropped", {"n3"}),
    ("n3", FirewallDrop(ports=NOT_RENDEZVOUS), "network-ephemeral-dropped", {"n3"}),
    ("n2", FirewallDrop(ports=ALL, peer="n1"), "network-dropped", {"n1", "n2"}),
    ("n2", FirewallDrop(peer="n1"), "network-dropped", {"n1", "n2"}),
    ("n2", FirewallDrop(peer="n[1,4]", ports=ALL), "network-dropped", {"n1", "n2", "n4"}),
    ("n3", FirewallReject(ports=ALL), "network-refused", {"n3"}),
    ("n3", FirewallReject(ports="29500"), "network-rendezvous-refused", {"n3"}),
    ("n3", FirewallReject(ports=ALL, answer="host-prohibited"), "network-rejected", {"n3"}),
    ("n3", FirewallReject(ports=NOT_RENDEZVOUS, answer="host-prohibited"), "network-ephemeral-rejected", {"n3"}),
    ("n2", UnresolvedName(peer="n3"), "network-unresolved", {"n2"}),
    ("n1", PortTaken(), "network-port-taken", {"n1"}),
    ("n2", PortTaken(owner="root"), "network-port-taken", {"n2"}),
]


# One for each code has a node of its own in one sandbox; alone, and with other faults or places, they are nightly.
TOGETHER = {code: (where, fault) for where, fault, code, _ in reversed(CASES)}
HOSTS = {code: f"n{number}" for number, code in enumerate(sorted(TOGETHER, key="network-port-taken".__ne__), 1)}


@pytest.fixture(scope="module")
def together() -> Iterator[tuple[Report, Report]]:
    """What is said of a sandbox with a fault on each node but two, and when all are healed."""
    with build_sandbox("network", nodes=len(TOGETHER) + 2) as box:
        with ExitStack() as stack:
            for code, (_, fault) in TOGETHER.items():
                stack.enter_context(inject_temporarily(box, box.host(HOSTS[code]), fault))
            before = check(box, count=len(box.nodes))
        yield before, check(box, count=len(box.nodes))


@pytest.mark.xdist_group("check-network")
@pytest.mark.parametrize("code", HOSTS)
def test_each_is_named_and_mended(together: tuple[Report, Report], code: str) -> None:
    """Each fault has the one finding that it has alone, on its own node; mended, the next check is green."""
    report, after = together
    (finding,) = (each for each in report.findings if each[0] == code)
    assert finding[2] == [HOSTS[code]]
    on = re.search(r"# on ([^ :;]+)", finding[4])
    assert on
    assert HOSTS[code] in expand_node_set(on[1], where="the fix")
    assert len(report.findings) == len(HOSTS)
    assert after.findings == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("where", "fault", "code", "nodes"),
    [pytest.param(*case, id=f"{case[2]}-{case[1].describe()}") for case in CASES],
)
def test_named_and_mended(box: Sandbox, where: str, fault: Fault, code: str, nodes: set[str]) -> None:
    """One finding, with the right code and node or pair, and nothing else; mended, the next check is green."""
    with inject_temporarily(box, box.host(where), fault):
        report = check(box)
    assert report.named == [(code, nodes)]
    on = re.search(r"# on ([^ :;]+)", report.findings[0][4])
    assert on
    assert where in expand_node_set(on[1], where="the fix")
    assert check(box).findings == []


# The same on the fabric, where losing it doesn't lose the node: faults of n3 and n4 that do not disturb each other.
LINKS: list[tuple[bool, list[tuple[Fault, str, list[str]]]]] = [
    (
        True,
        [
            (LinkDown(network="fabric"), "network-link-down", ["network-dropped"]),
            (MtuBlackHole(network="fabric"), "network-mtu", []),
        ],
    ),
    (
        True,
        [
            (MtuBlackHole(network="fabric", way="in"), "network-mtu", []),
            (FirewallDrop(network="fabric"), "network-dropped", []),
        ],
    ),
    (False, [(LinkRateLimit(mbit=50, network="fabric"), "network-slow", [])]),
    (False, [(PacketLoss(percent=5, network="fabric"), "network-loss", [])]),
]


@pytest.mark.xdist_group("fabric")
@pytest.mark.parametrize(
    ("quick", "faults"), LINKS, ids=[", ".join(fault.name for fault, *_ in case[1]) for case in LINKS]
)
def test_links(fabric_box: Sandbox, *, quick: bool, faults: list[tuple[Fault, str, list[str]]]) -> None:
    """A bad cable, port or switch is named by its node, with what follows from it below; mended, all is green."""
    with ExitStack() as stack:
        for node, (fault, *_) in zip(("n3", "n4"), faults, strict=False):
            stack.enter_context(inject_temporarily(fabric_box, fabric_box.host(node), fault))
        report = check(fabric_box, fabric=True, quick=quick)
    found = {tuple(each[2]): (each[0], each[5]) for each in report.findings if each[0] != "network-flaky"}
    assert found == {(node,): (code, under) for node, (_, code, under) in zip(("n3", "n4"), faults, strict=False)}
    assert check(fabric_box, fabric=True, quick=quick).findings == []


def test_a_rule_of_iptables_mends_it(box: Sandbox) -> None:
    """The very line that the finding tells to type, typed on the node that it names."""
    node = box.host("n3")
    block = ["iptables", "-A", "INPUT", "-p", "tcp", "--syn", "--dport", "1024:65535", "-j", "DROP"]
    assert node.run(block, root=True).returncode == 0
    try:
        (finding,) = check(box).findings
        assert (finding[0], finding[2]) == ("network-dropped", ["n3"])
        line = next(line for line in finding[4].splitlines() if "iptables" in line)
        typed = line.partition("    #")[0].removeprefix("sudo ")
        assert node.run(["sh", "-c", typed], root=True).returncode == 0
        assert check(box).findings == []
    finally:
        node.run(["sh", "-c", "iptables -F INPUT; nft delete table ip filter"], root=True)


def test_two_faults_at_once(box: Sandbox) -> None:
    """Each is named with its own code and node."""
    faults: dict[str, Fault] = {"n1": PortTaken(), "n3": FirewallDrop(ports=ALL), "n4": UnresolvedName(peer="n2")}
    with ExitStack() as stack:
        for name, fault in faults.items():
            stack.enter_context(inject_temporarily(box, box.host(name), fault))
        report = check(box)
    assert sorted(report.named, key=lambda each: each[0]) == [
        ("network-dropped", {"n3"}),
        ("network-port-taken", {"n1"}),
        ("network-unresolved", {"n4"}),
    ]


def test_an_interface_that_is_not_there(box: Sandbox) -> None:
    """The env that names it blocks, with the one that peers reach as the fix."""
    (finding,) = check(box, env={"NCCL_SOCKET_IFNAME": "ib0"}).findings
    assert (finding[0], finding[2]) == ("network-interface-missing", ["n2"])
    assert "NCCL_SOCKET_IFNAME: eth0" in finding[4]
    assert check(box, env={"NCCL_SOCKET_IFNAME": "eth0"}).findings == []


@pytest.mark.xdist_group("fabric")
def test_the_interface_that_the_env_names_is_tried(fabric_box: Sandbox) -> None:
    """A firewall on the other network is found, and one on the network that isn't used is not."""
    with inject_temporarily(fabric_box, fabric_box.host("n2"), FirewallDrop(ports=ALL, network="fabric")):
        assert check(fabric_box).findings == []
        asked = check(fabric_box, env={"NCCL_SOCKET_IFNAME": "eth1", "GLOO_SOCKET_IFNAME": "eth1"})
    assert asked.named == [("network-dropped", {"n2"})]
    assert fabric_box.host("n2").fabric_address in asked.findings[0][3]
