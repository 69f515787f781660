"""From a matrix of connections to the few findings that explain it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import ReachedNode
from aboard.core.cluster.node import Node
from aboard.core.decoding import decode
from aboard.core.evidence.consequences import fold_consequences
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.probe import CommandOutput, FileContents, ProbeParseError
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.network.interfaces import INTERFACES, NetworkInterface, parse_interfaces
from aboard.doctor.network.link_rates import RATES, LinkRate, LinkRates, group_bad_pairs, schedule_rounds
from aboard.doctor.network.mesh_explanation import ConnectionFault, FaultShape, explain_mesh
from aboard.doctor.network.mesh_probe import MESH, ListenReply, _build_occupied_port, select_peers
from aboard.doctor.network.mesh_result import (
    ConnectionAttempt,
    InterfaceAddress,
    MeshResult,
    OccupiedPort,
    Pair,
    PortKind,
)
from aboard.doctor.network.subject import SUBJECT, build_subject

R, E = PortKind.RENDEZVOUS, PortKind.EPHEMERAL
BOTH = (R, E)


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(1, count + 1)]


def made(count: int, bad: Mapping[tuple[Pair, PortKind], str] | None = None, **fields: object) -> MeshResult:
    """A mesh of so many nodes, all well but what is said."""
    whom = select_peers(names(count))
    tries = {
        (frm, to, port): ConnectionAttempt(
            outcome=(bad or {}).get(((frm, to), port), "ok"), local=f"10.0.0.{frm[1:]}", remote=f"10.0.0.{to[1:]}"
        )
        for frm in whom
        for to in whom[frm]
        for port in PortKind
    }
    usual = {
        "targets": {name: name for name in names(count)},
        "addresses": {
            name: (
                InterfaceAddress(interface="lo", address="127.0.0.1/8"),
                InterfaceAddress(interface="eth0", address=f"10.0.0.{name[1:]}/24"),
            )
            for name in names(count)
        },
        "resolved": {name: {peer: (f"10.0.0.{peer[1:]}",) for peer in (*whom[name], name)} for name in names(count)},
        "hostnames": {name: Untrusted(name) for name in names(count)},
        "sparse": count > 64,
    }
    return MeshResult(tries=tries, **{**usual, **fields})  # type: ignore[arg-type]


def wrong(
    pairs: list[Pair], outcome: str = "dropped", ports: tuple[PortKind, ...] = BOTH
) -> dict[tuple[Pair, PortKind], str]:
    return {(pair, port): outcome for pair in pairs for port in ports}


def into(node: str, count: int) -> list[Pair]:
    return [(name, node) for name in names(count) if name != node]


def out_of(node: str, count: int) -> list[Pair]:
    return [(node, name) for name in names(count) if name != node]


def facts(mesh: MeshResult | Unknown | None, *nodes: Node, rates: LinkRates | None = None) -> Facts:
    nodes = nodes or tuple(Node(name=name) for name in (mesh.targets if isinstance(mesh, MeshResult) else ("n1", "n2")))
    met = ReachedNode(hostname="", user="", address="", python="", round_trip=0, clock_offset=0)
    cards = {"lo": NetworkInterface(state="unknown", mtu=65536), "eth0": NetworkInterface(state="up", mtu=1500)}
    return Facts(
        cluster=Cluster(nodes=nodes),
        contacts={node.name: met for node in nodes},
        answers={INTERFACES.name: {node.name: cards for node in nodes}},
        outcomes={MESH.name: mesh, RATES.name: rates},
    )


def judged(mesh: MeshResult, *nodes: Node) -> list[Finding]:
    return SUBJECT.judge(facts(mesh, *nodes))


def blamed(mesh: MeshResult) -> list[tuple[str, str, FaultShape, tuple[str, ...]]]:
    return [(blame.outcome, blame.scope, blame.shape, blame.nodes) for blame in explain_mesh(mesh)]


@pytest.mark.parametrize("count", [1, 2, 3, 16, 100])
def test_a_healthy_mesh_says_nothing(count: int) -> None:
    """Nothing above info; above 64 nodes, that a pair may be missed."""
    assert [finding.code for finding in judged(made(count))] == (["network-sparse"] if count > 64 else [])


@pytest.mark.parametrize("count", [3, 4, 16, 64, 100])
@pytest.mark.parametrize("outcome", ["dropped", "refused", "rejected"])
def test_a_deaf_node_is_one_finding(count: int, outcome: str) -> None:
    """Not one for each of its peers."""
    mesh = made(count, wrong(into("n3", count), outcome))
    assert blamed(mesh) == [(outcome, "every", FaultShape.IN, ("n3",))]
    finding = judged(mesh)[0]
    assert (finding.code, finding.nodes, finding.severity) == (f"network-{outcome}", ("n3",), Severity.BLOCK)
    assert "n3 (10.0.0.3) accepts no connection" in finding.seen
    assert "# on n3" in finding.fix


def test_a_mute_node() -> None:
    """It can connect to nobody, and is connected to."""
    mesh = made(4, wrong(out_of("n2", 4)))
    assert blamed(mesh) == [("dropped", "every", FaultShape.OUT, ("n2",))]
    assert "n2 (10.0.0.2) cannot connect to any of 3 peers" in judged(mesh)[0].seen
    assert "OUTPUT" in judged(mesh)[0].fix


def test_only_ports_that_were_tried_are_said_to_fail() -> None:
    """A firewall may let others through: ssh works, or there would be no check."""
    assert "peers on the rendezvous port 29500 and ephemeral ports; " in judged(made(4, wrong(into("n3", 4))))[0].seen
    mesh = made(4, wrong(into("n3", 4), ports=(PortKind.EPHEMERAL,)))
    only = {place: attempt for place, attempt in mesh.tries.items() if place[2] is PortKind.EPHEMERAL}
    assert "peers on ephemeral ports; " in judged(replace(mesh, tries=only))[0].seen
    assert "peers on ephemeral ports (other ports work); " in judged(mesh)[0].seen


def test_a_node_that_is_cut_off() -> None:
    """Both ways are one finding."""
    assert blamed(made(8, wrong(into("n5", 8) + out_of("n5", 8)))) == [("dropped", "every", FaultShape.BOTH, ("n5",))]


def test_a_single_pair() -> None:
    """One way, and both ways, with the node that doesn't accept first."""
    one = judged(made(16, wrong([("n1", "n2")])))[0]
    assert one.nodes == ("n2", "n1")
    assert "n1 → n2 fails" in one.seen
    assert "-s 10.0.0.1 --dport 1024:65535" in one.fix
    two = judged(made(16, wrong([("n1", "n2"), ("n2", "n1")])))
    assert len(two) == 1
    assert "n1 ↔ n2 fail" in two[0].seen


def test_two_nodes_are_a_pair() -> None:
    """With one peer each, nobody can tell whose fault it is."""
    assert blamed(made(2, wrong([("n1", "n2")]))) == [("dropped", "every", FaultShape.PAIRS, ("n1", "n2"))]


def test_some_peers_of_a_node_are_bundled() -> None:
    """A node that takes nothing from a few of many is one finding with its pairs."""
    (finding,) = judged(made(16, wrong([("n1", "n3"), ("n2", "n3")])))
    assert finding.nodes[0] == "n3"
    assert "n1 → n3 and n2 → n3" in finding.seen


def test_a_firewall_on_all_nodes_is_one_finding() -> None:
    """Everybody is deaf; and all but one are just those."""
    everybody = [pair for name in names(16) for pair in into(name, 16)]
    assert blamed(made(16, wrong(everybody, ports=(E,)))) == [("dropped", "ephemeral", FaultShape.IN, tuple(names(16)))]
    all_but_one = [pair for name in names(16)[1:] for pair in into(name, 16)]
    assert blamed(made(16, wrong(all_but_one))) == [("dropped", "every", FaultShape.IN, tuple(names(16)[1:]))]


def test_a_cluster_in_two_parts() -> None:
    """Two switches without a cable between them."""
    left, right = names(6)[:3], names(6)[3:]
    cut = [pair for one in left for other in right for pair in ((one, other), (other, one))]
    assert blamed(made(6, wrong(cut))) == [("dropped", "every", FaultShape.SPLIT, tuple(names(6)))]
    assert "n1, n2 and n3 | n4, n5 and n6" in judged(made(6, wrong(cut)))[0].seen


@pytest.mark.parametrize(("port", "word"), [(R, "rendezvous"), (E, "ephemeral")])
def test_ports_are_told_apart(port: PortKind, word: str) -> None:
    """A firewall that lets one kind through has another code and another fix."""
    finding = judged(made(4, wrong(into("n3", 4), ports=(port,))))[0]
    assert finding.code == f"network-{word}-dropped"
    assert ("--dport 29500" if port is R else "--dport 1024:65535") in finding.fix


def test_two_faults_at_once_are_both_named() -> None:
    """Of one kind in one finding, of two kinds in two."""
    same = made(8, wrong(into("n3", 8) + into("n5", 8)))
    assert blamed(same) == [("dropped", "every", FaultShape.IN, ("n3", "n5"))]
    mixed = made(8, wrong(into("n3", 8)) | wrong(out_of("n6", 8), "rejected", (E,)))
    assert [(finding.code, finding.nodes) for finding in judged(mixed)] == [
        ("network-dropped", ("n3",)),
        ("network-ephemeral-rejected", ("n6",)),
    ]


def test_large_packets_that_vanish() -> None:
    """Named with the interface, and not as a matter of ports."""
    mesh = made(4, wrong(into("n3", 4) + out_of("n3", 4), "stalled", (E,)))
    (finding,) = judged(mesh)
    assert (finding.code, finding.nodes) == ("network-mtu", ("n3",))
    assert "large messages to and from n3 (10.0.0.3) are lost" in finding.seen
    assert "dev eth0 mtu" in finding.fix


def test_a_port_that_is_taken() -> None:
    """It warns, since a launch finds another one; it blocks where rank 0 was told this one; our own is a mention."""
    taken = OccupiedPort(why="EADDRINUSE", owner=Untrusted("python (pid 7) of crew"))
    mesh = made(3, taken={"n1": taken, "n2": taken, "n3": OccupiedPort(why="EADDRINUSE", ours=True)})
    found = judged(mesh)
    levels = [finding.severity for finding in found]
    assert [finding.nodes for finding in found] == [("n1",), ("n2",), ("n3",)]
    assert levels == [Severity.WARN, Severity.WARN, Severity.INFO]
    told = judged(mesh, Node(name="n1", env={"MASTER_PORT": "29500"}), Node(name="n2"), Node(name="n3"))
    assert [finding.severity for finding in told] == [Severity.BLOCK, Severity.WARN, Severity.INFO]
    assert "python (pid 7) of crew" in found[0].seen


def test_a_name_that_leads_nowhere() -> None:
    """Warns where one node misses it; one that nobody knows is an alias of the head's."""
    mesh = made(3)
    one = {**mesh.resolved, "n2": {**mesh.resolved["n2"], "n3": Untrusted("Name or service not known")}}
    (finding,) = judged(made(3, resolved=one))
    assert (finding.code, finding.nodes, finding.severity) == ("network-unresolved", ("n2",), Severity.WARN)
    assert "echo '10.0.0.3 n3'" in finding.fix
    alias = {name: dict.fromkeys(names(3), Untrusted("unknown")) for name in names(3)}
    assert {finding.severity for finding in judged(made(3, resolved=alias))} == {Severity.INFO}


def test_a_name_without_any_address_blocks() -> None:
    """Nothing could be dialled at all."""
    mesh = made(3, wrong([("n2", "n3")], "unresolved"))
    lost = {**mesh.resolved, "n2": {**mesh.resolved["n2"], "n3": Untrusted("no answer came in time")}}
    (finding,) = judged(made(3, wrong([("n2", "n3")], "unresolved"), resolved=lost))
    assert (finding.code, finding.severity) == ("network-unresolved", Severity.BLOCK)


def test_a_peer_on_loopback() -> None:
    """A node that takes its peer for itself is named with it; IPv6's loopback counts."""
    mesh = made(3)
    for wrongly in (("127.0.0.1",), ("127.0.1.1", "::1")):
        (finding,) = judged(made(3, resolved={**mesh.resolved, "n2": {**mesh.resolved["n2"], "n3": wrongly}}))
        assert (finding.code, finding.nodes) == ("network-peer-on-loopback", ("n2", "n3"))
    assert judged(made(3, resolved={**mesh.resolved, "n2": {**mesh.resolved["n2"], "n2": ("127.0.1.1",)}})) == []


def test_names_that_differ() -> None:
    """The odd node is named; a further address beside the same one is no difference, IPv6 or not."""
    mesh = made(4)
    odd = {**mesh.resolved, "n2": {**mesh.resolved["n2"], "n4": ("10.9.9.9",)}}
    (finding,) = judged(made(4, resolved=odd))
    assert (finding.code, finding.nodes) == ("network-names-differ", ("n2",))
    more = {**mesh.resolved, "n2": {**mesh.resolved["n2"], "n4": ("10.0.0.4", "fd00::4")}}
    assert judged(made(4, resolved=more)) == []


def test_interfaces_are_chosen_by_who_reaches_whom() -> None:
    """Where there are several, those that carried connections are proposed, for each node its own."""
    two = {
        name: (
            InterfaceAddress(interface="docker0", address="172.17.0.1/16"),
            InterfaceAddress(interface="eth0" if name != "n3" else "ens3", address=f"10.0.0.{name[1:]}/24"),
        )
        for name in names(3)
    }
    mesh = made(3, addresses=two)
    assert mesh.interfaces == {"n1": "eth0", "n2": "eth0", "n3": "ens3"}
    (finding,) = judged(mesh)
    assert (finding.code, finding.severity) == ("network-interface", Severity.INFO)
    assert "NCCL_SOCKET_IFNAME: ens3    # under `env:` of n3" in finding.fix
    assert "docker0" not in finding.seen


@pytest.mark.parametrize(
    ("more", "name", "fires"), [("docker0", "eth0", True), ("lo", "ens3", True), ("lo", "eth0", False)]
)
def test_an_interface_is_proposed_where_it_is_not_obvious(more: str, name: str, fires: bool) -> None:  # noqa: FBT001
    """Nodes with several to choose from, or that differ from the others; not where all have the same single one."""
    addresses = {
        node: (
            InterfaceAddress(interface=more, address="127.0.0.1/8" if more == "lo" else "172.17.0.1/16"),
            InterfaceAddress(interface=name if node == "n2" else "eth0", address=f"10.0.0.{node[1:]}/24"),
        )
        for node in names(3)
    }
    assert [finding.code for finding in judged(made(3, addresses=addresses))] == (
        ["network-interface"] if fires else []
    )


@pytest.mark.parametrize(
    ("variable", "value", "fires"),
    [
        ("GLOO_SOCKET_IFNAME", "ib0", True),
        ("GLOO_SOCKET_IFNAME", "eth0", False),
        ("GLOO_SOCKET_IFNAME", "eth0,ib0", True),
        ("GLOO_SOCKET_IFNAME", "eth", True),
        ("NCCL_SOCKET_IFNAME", "ib0", True),
        ("NCCL_SOCKET_IFNAME", "eth", False),
        ("NCCL_SOCKET_IFNAME", "=eth", True),
        ("NCCL_SOCKET_IFNAME", "=eth0", False),
        ("NCCL_SOCKET_IFNAME", "ib,eth", False),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", False),
        ("NCCL_SOCKET_IFNAME", "", False),
    ],
)
def test_an_interface_that_is_not_there(variable: str, value: str, *, fires: bool) -> None:
    """NCCL takes prefixes, exact names after `=`, and exclusions; gloo takes names."""
    found = judged(made(2), Node(name="n1"), Node(name="n2", env={variable: value}))
    assert [(finding.code, finding.nodes) for finding in found] == (
        [("network-interface-missing", ("n2",))] if fires else []
    )
    assert not fires or f"{variable}: eth0" in found[0].fix


def test_a_node_with_loopback_alone() -> None:
    """The sentence has an end there too."""
    known = facts(made(2), Node(name="n1"), Node(name="n2", env={"GLOO_SOCKET_IFNAME": "ib0"}))
    cards = {"lo": NetworkInterface(state="unknown", mtu=65536)}
    known.answers[INTERFACES.name]["n2"] = cards  # type: ignore[index] # a dict, as it is made above
    (seen,) = (finding.seen for finding in SUBJECT.judge(known) if finding.code == "network-interface-missing")
    assert seen.endswith("; it has only lo")


def test_a_dead_link_has_its_consequences_under_it() -> None:
    """Not beside it."""
    mesh = made(4, wrong(into("n3", 4) + out_of("n3", 4)))
    known = facts(mesh)
    cards = {"eth0": NetworkInterface(state="lowerlayerdown", mtu=1500)}
    known.answers[INTERFACES.name]["n3"] = cards  # type: ignore[index] # a dict, as it is made above
    (finding,) = fold_consequences(SUBJECT.judge(known), SUBJECT.diagnoses)
    assert (finding.code, finding.nodes) == ("network-link-down", ("n3",))
    assert [each.code for each in finding.consequences] == ["network-dropped"]


def test_a_mesh_that_was_not_held_is_unknown() -> None:
    """For one node, and for all of them."""
    (one,) = judged(made(3, missing={"n2": "it did not answer"}))
    assert (one.code, one.nodes, one.severity) == ("unknown-mesh", ("n2",), Severity.WARN)
    (every,) = SUBJECT.judge(facts(Unknown(why="stumbled")))
    assert every.nodes == ("n1", "n2")
    assert SUBJECT.judge(facts(None)) == []


def test_what_works_at_the_second_try_is_flaky() -> None:
    """And names the node that all of it has in common."""
    flaky = {
        ("n1", "n3", E): ConnectionAttempt(outcome="dropped"),
        ("n3", "n2", R): ConnectionAttempt(outcome="stalled"),
    }
    (finding,) = judged(made(4, flaky=flaky))
    assert (finding.code, finding.nodes, finding.severity) == ("network-flaky", ("n3",), Severity.WARN)


@pytest.mark.parametrize("count", [65, 100, 128, 1000, 4096])
def test_the_sparse_pattern_is_connected_and_small(count: int) -> None:
    """O(log n) peers each, both ways, and everybody is reached from anybody."""
    whom = select_peers(names(count))
    assert max(map(len, whom.values())) <= 2 * count.bit_length()
    assert all(name in whom[peer] for name in whom for peer in whom[name])
    assert all(name not in whom[name] for name in whom)
    seen, ahead = {"n1"}, ["n1"]
    while ahead:
        new = set(whom[ahead.pop()]) - seen
        seen |= new
        ahead.extend(new)
    assert len(seen) == count
    assert len(select_peers(names(100), all_pairs=True)["n1"]) == 99
    assert build_subject(all_pairs=True).multi_node_probes[0].name == MESH.name


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 16, 64])
def test_a_tournament(count: int) -> None:
    """In a round nobody plays twice; up to sixteen everybody meets everybody, beyond fifteen rounds are enough."""
    games = schedule_rounds(names(count))
    for game in games:
        ends = [name for pair in game for name in pair]
        assert len(ends) == len(set(ends))
    met = {frozenset(pair) for game in games for pair in game}
    assert len(met) == (count * (count - 1) // 2 if count <= 16 else 15 * count // 2)


def _rates(count: int, odd: Mapping[Pair, LinkRate]) -> LinkRates:
    usual = LinkRate(mbit=9400, segments=10000, again=1, rtt=0.0001)
    every = {(frm, to): usual for frm in names(count) for to in names(count) if frm != to}
    return LinkRates(links={**every, **odd})


def _links(count: int, odd: Mapping[Pair, LinkRate]) -> list[Finding]:
    return SUBJECT.judge(facts(made(count), rates=_rates(count, odd)))


def test_a_slow_node_is_named_with_its_rate() -> None:
    """All links of one node are one finding; both ends of one link are that link."""
    slow = LinkRate(mbit=48, segments=1000, again=0, rtt=0.05)
    assert _links(8, {}) == []
    (finding,) = _links(8, dict.fromkeys(into("n3", 8) + out_of("n3", 8), slow))
    assert (finding.code, finding.nodes) == ("network-slow", ("n3",))
    assert "48 Mbit/s; the median is 9,400" in finding.seen
    (finding,) = _links(8, dict.fromkeys([("n3", "n4"), ("n4", "n3")], slow))
    assert finding.nodes == ("n3", "n4")


def test_a_lossy_node_is_named_with_its_loss() -> None:
    """Also where only some of its links are slow."""
    lossy = LinkRate(mbit=8000, segments=1000, again=50, rtt=0.001)
    slow = LinkRate(mbit=400, segments=1000, again=0, rtt=0.001)
    (finding,) = _links(4, {("n1", "n3"): lossy, ("n3", "n2"): slow, ("n4", "n3"): lossy})
    assert (finding.code, finding.nodes, finding.severity) == ("network-loss", ("n3",), Severity.WARN)
    assert "5.0% of the packets" in finding.seen


def test_two_bad_nodes_cover_their_links() -> None:
    """Each is named once."""
    bad = {*into("n3", 8), *out_of("n3", 8), *into("n5", 8)}
    assert [nodes for nodes, _ in group_bad_pairs(bad)] == [("n3",), ("n5",)]


def test_every_code_has_a_story() -> None:
    """Of all that can fail, in all shapes."""
    told = {story.code for story in SUBJECT.diagnoses}
    assert len(told) == len(SUBJECT.diagnoses)
    for outcome in ("dropped", "refused", "rejected"):
        for scope in ("", "rendezvous-", "ephemeral-"):
            assert f"network-{scope}{outcome}" in told
    for outcome in ("reset", "silent", "stalled"):
        for ports in (BOTH, (R,), (E,)):
            assert judged(made(4, wrong(into("n3", 4), outcome, ports)))[0].code in told


def test_interfaces_are_read_from_sys() -> None:
    """With state and MTU; what isn't whole stays unknown."""
    files = {
        "/sys/class/net/eth0/operstate": "up\n",
        "/sys/class/net/eth0/mtu": "9000\n",
        "/sys/class/net/eth0/queues/mtu": "1\n",
    }
    assert parse_interfaces(FileContents(files=files)) == {"eth0": NetworkInterface(state="up", mtu=9000)}
    for answer in (
        CommandOutput(code=0, stdout=""),
        FileContents(files={}),
        FileContents(files={"/sys/class/net/eth0/mtu": "x"}),
    ):
        with pytest.raises(ProbeParseError):
            parse_interfaces(answer)


def test_a_blame_is_a_value() -> None:
    """So that it can be compared and kept."""
    (blame,) = explain_mesh(made(3, wrong(into("n3", 3))))
    assert blame == ConnectionFault(
        outcome="dropped", scope="every", shape=FaultShape.IN, nodes=("n3",), pairs=frozenset(into("n3", 3))
    )


def test_packets_of_another_size_are_worth_a_line() -> None:
    """Named with the interface and the usual size; large messages that vanish there are its consequence."""
    whole = facts(made(4))
    sizes = {**whole.answers[INTERFACES.name], "n3": {"eth0": NetworkInterface(state="up", mtu=9000)}}
    odd = replace(whole, answers={INTERFACES.name: sizes})
    (finding,) = SUBJECT.judge(odd)
    assert (finding.code, finding.severity, finding.nodes) == ("network-mtu-differs", Severity.INFO, ("n3",))
    assert finding.seen == "eth0 on n3 has an MTU of 9000 bytes; the other nodes have 1500"
    assert finding.fix.startswith("sudo ip link set dev eth0 mtu 1500    # on n3; ")
    stalled = replace(odd, outcomes={MESH.name: made(4, wrong(into("n3", 4), "stalled", (E,)))})
    (cause,) = fold_consequences(SUBJECT.judge(stalled), SUBJECT.diagnoses)
    assert (cause.code, cause.severity) == ("network-mtu-differs", Severity.BLOCK)
    assert [each.code for each in cause.consequences] == ["network-mtu"]


def test_the_pid_that_has_the_port_is_kept() -> None:
    """For who knows why that process is there."""
    owner = {"name": "python3", "pid": 77, "user": "ann"}
    taken = [{"errno": "EADDRINUSE", "owner": each} for each in (owner, {**owner, "pid": "77"})]
    one, other = (_build_occupied_port(bound) for bound in decode(ListenReply, {"ports": taken, "addresses": []}).ports)
    assert (one.pid, one.owner.visible()) == (77, "python3 (pid 77) of ann")
    assert (other.pid, other.owner.visible()) == (0, "a process of ann")
    mesh = made(2, taken={"n1": OccupiedPort(why="EADDRINUSE", owner=Untrusted("python3 (pid 77) of ann"), pid=77)})
    assert [finding.about for finding in judged(mesh)] == [("pid 77",)]
