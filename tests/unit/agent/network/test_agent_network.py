"""The agent's ops for peers, on loopback, through real agents."""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from deadlines import within
from train_crew import free_port

from aboard.agent import process_tree
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import ReachedNode
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import Script
from aboard.diagnoses import AgentRequestError
from aboard.doctor.network.link_rates import RATES, LinkRates
from aboard.doctor.network.mesh_probe import MESH
from aboard.doctor.network.mesh_result import MeshResult, PortKind
from aboard.doctor.network.subject import SUBJECT
from aboard.engine.check.check_cluster import check_cluster
from aboard.transport.agent_link import AgentLink
from aboard.transport.node_dialer import NodeDialer

Diagnosis = Callable[[AgentLink, AgentLink], Awaitable[None]]
HERE = "127.0.0.1"
TOKEN = "0123456789abcdef" * 2


def tell(story: Diagnosis) -> None:
    """Two agents of this machine."""

    async def play() -> None:
        fleet = NodeDialer()
        links = [(await fleet.dial(Node(name=name, transport=TransportKind.LOCAL))).link for name in ("a", "b")]
        try:
            await story(*links)
        finally:
            await asyncio.gather(*(link.close() for link in links))

    asyncio.run(play())


async def listen(link: AgentLink, *ports: int) -> list[dict[str, Any]]:
    reply = await link.ask("listen", 5, ports=list(ports), token=TOKEN)
    found: list[dict[str, Any]] = reply["ports"]
    return found


async def connect(link: AgentLink, *targets: tuple[str, int, int], seconds: float = 2.0, **more: Any) -> dict[str, Any]:
    fields = {"targets": [list(each) for each in targets], "seconds": seconds, "timeout": 10, "token": TOKEN, **more}
    return await link.ask("connect", 20, **fields)


def test_what_is_sent_comes_back() -> None:
    """A little and a lot, over IPv4 and IPv6, by name and by address, in parallel and one by one."""

    async def story(a: AgentLink, b: AgentLink) -> None:
        (bound,) = await listen(a, 0)
        targets = [(host, bound["port"], size) for host in (HERE, "localhost", "::1") for size in (0, 65536, 3_000_000)]
        for parallel in (1, 256):
            reply = await connect(b, *targets, parallel=parallel)
            assert [result[0] for result in reply["results"]] == ["ok"] * len(targets)
        assert reply["results"][0][2:4] == [HERE, HERE]
        assert reply["results"][-1][2:4] == ["::1", "::1"]
        assert reply["hostname"] in reply["resolved"]

    tell(story)


def test_ways_to_fail_are_told_apart() -> None:
    """Refused, unresolved, silent and reset, each at once or within the time; the rest isn't held up."""

    async def story(a: AgentLink, b: AgentLink) -> None:
        (bound,) = await listen(a, 0)
        with socket.create_server((HERE, 0)) as mute, socket.create_server((HERE, 0)) as closed:
            free = closed.getsockname()[1]
            closed.close()
            reply = await connect(
                b,
                (HERE, free, 0),
                ("no-such-name.invalid", 1, 0),
                (HERE, mute.getsockname()[1], 0),
                (HERE, bound["port"], 0),
                seconds=0.3,
                resolve=["localhost"],
            )
        outcomes = [result[0] for result in reply["results"]]
        assert outcomes == ["refused", "unresolved", "silent", "ok"]
        assert 0.3 <= reply["results"][2][1] < 2
        assert isinstance(reply["resolved"]["no-such-name.invalid"], str)
        assert HERE in reply["resolved"]["localhost"]

    tell(story)


def test_a_port_that_is_taken_names_its_owner() -> None:
    """Ours is known as ours, another process by name and number."""

    async def story(a: AgentLink, b: AgentLink) -> None:
        (bound,) = await listen(a, 0)
        (again,) = await listen(b, bound["port"])
        assert again["errno"] == "EADDRINUSE"
        assert again["owner"]["ours"] is True
        with socket.create_server((HERE, 0)) as other:
            (taken,) = await listen(b, other.getsockname()[1])
        assert taken["errno"] == "EADDRINUSE"
        assert taken["owner"]["pid"] == os.getpid()
        assert taken["owner"]["ours"] is False

    tell(story)


def test_addresses_are_told_with_their_interface() -> None:
    """Loopback is one that every host has."""

    async def story(a: AgentLink, _b: AgentLink) -> None:
        reply = await a.ask("listen", 5, ports=[])
        assert ["lo", HERE, 8] in reply["addresses"]

    tell(story)


def test_listeners_end_with_their_agent() -> None:
    """The port is free, and no process is left, as soon as the link is closed."""
    before = process_tree.list_descendants(os.getpid())

    async def story(a: AgentLink, b: AgentLink) -> None:
        (bound,) = await listen(a, 0)
        # A child of the agent that outlives it must not keep the port.
        hanging = asyncio.create_task(a.ask("connect", 20, targets=[], resolve=[], seconds=1, timeout=5))
        await hanging
        await a.close()
        (again,) = await listen(b, bound["port"])
        assert again == bound

    tell(story)
    assert process_tree.list_descendants(os.getpid()) <= before


def test_a_push_counts_what_arrived() -> None:
    """For as long as it was told to, and no longer."""

    async def story(a: AgentLink, b: AgentLink) -> None:
        (bound,) = await listen(a, 0)
        with within(3):
            reply = await b.ask("push", 10, target=[HERE, bound["port"]], seconds=0.1, timeout=6, token=TOKEN)
        assert reply["bytes"] > 1_000_000
        assert reply["seconds"] >= 0.1
        assert reply["segments"] > 0
        with pytest.raises(AgentRequestError):
            await b.ask("push", 10, target=[HERE, 1], seconds=0.1, timeout=6)

    tell(story)


def test_a_peer_that_floods_and_never_reads_waits() -> None:
    """The agent answers others meanwhile, and the flood stays in the sender's socket."""

    async def story(a: AgentLink, b: AgentLink) -> None:
        (bound,) = await listen(a, 0)
        with socket.create_connection((HERE, bound["port"])) as flood:
            flood.settimeout(0)
            flood.send(TOKEN.encode() + b"E")
            sent, deadline = 0, time.monotonic() + 1
            while time.monotonic() < deadline:
                try:
                    sent += flood.send(bytes(1 << 20))
                except BlockingIOError:
                    if sent and time.monotonic() > deadline - 0.5:
                        break
            reply = await connect(b, (HERE, bound["port"], 65536))
            assert reply["results"][0][0] == "ok"
            assert sent < 100 << 20

    tell(story)


@pytest.mark.ci
def test_the_exercises_on_local_nodes() -> None:
    """Real agents, one machine: everybody reaches everybody, rates are measured, and nothing above info is said."""
    # Other tests on this machine may use torch's usual port.
    env = {"MASTER_PORT": str(free_port())}
    cluster = Cluster(nodes=tuple(Node(name=name, env=env, transport=TransportKind.LOCAL) for name in ("a", "b", "c")))
    report = asyncio.run(check_cluster(cluster, (SUBJECT,)))
    mesh = MESH.outcome(report.facts)
    assert isinstance(mesh, MeshResult)
    assert {each.outcome for each in mesh.tries.values()} == {"ok"}
    rates = RATES.outcome(report.facts)
    assert isinstance(rates, LinkRates)
    assert len(rates.links) == 6
    assert [finding.code for finding in report.findings if finding.severity.word != "info"] == []


def _facts(*names: str) -> Facts:
    met = {
        name: ReachedNode(hostname=name, user="", address="10.0.0.9", python="", round_trip=0, clock_offset=0)
        for name in names
    }
    return Facts(cluster=Cluster(nodes=tuple(Node(name=name) for name in names)), contacts=met)


def _listening(address: str) -> dict[str, Any]:
    return {"ports": [{"port": 29500}, {"port": 40000}], "addresses": [["eth0", address, 24]]}


def _said(*results: list[Any], **resolved: Any) -> dict[str, Any]:
    return {"hostname": "x", "resolved": resolved, "results": list(results)}


def _well(count: int) -> dict[str, Any]:
    return _said(*[["ok", 0.1, "10.0.0.1", "10.0.0.2", ""]] * count)


def test_a_node_that_talks_nonsense_is_missing_and_the_others_are_judged() -> None:
    """In the first round and in the second."""
    script: Script[MeshResult] = MESH.script(_facts("a", "b", "c", "d"))
    assert set(next(script)) == {"a", "b", "c", "d"}
    asked = script.send(
        {"a": _listening("10.0.0.1"), "b": _listening("10.0.0.2"), "c": {"ports": "none"}, "d": Unknown(why="gone")}
    )
    assert set(asked) == {"a", "b"}
    with pytest.raises(StopIteration) as done:
        script.send({"a": _well(2), "b": {"results": [[1]]}})
    mesh: MeshResult = done.value.value
    assert set(mesh.missing) == {"b", "c", "d"}
    assert {key[:2] for key in mesh.tries} == {("a", "b")}


def test_what_failed_is_tried_again() -> None:
    """By the address that we know, where the name leads nowhere; what works then is flaky, but not for its name."""
    script: Script[MeshResult] = MESH.script(_facts("a", "b"))
    next(script)
    script.send({"a": _listening("10.0.0.1"), "b": _listening("10.0.0.2")})
    dropped = ["dropped", 2.0, "", "10.0.0.1", ""]
    fine = ["ok", 0.1, "", "10.0.0.1", ""]
    lost = ["unresolved", 0.0, "", "", "unknown"]
    again = script.send({"a": _said(lost, lost, b="unknown"), "b": _said(dropped, fine, a=["10.0.0.1"])})
    assert again["a"].fields["targets"] == [["10.0.0.9", 29500, 0], ["10.0.0.9", 40000, 65536]]
    assert [target[0] for target in again["b"].fields["targets"]] == ["a"]
    with pytest.raises(StopIteration) as done:
        script.send({"a": _said(fine, fine), "b": _said(["rejected", 1.0, "", "10.0.0.1", "no route"])})
    mesh: MeshResult = done.value.value
    assert mesh.flaky == {}
    assert mesh.tries["a", "b", PortKind.EPHEMERAL].outcome == "ok"
    # Nobody answers for the address: the system says so only when it is asked twice.
    assert mesh.tries["b", "a", PortKind.RENDEZVOUS].outcome == "dropped"


def test_peers_are_told_the_network_that_was_asked_for() -> None:
    """The fabric's address, or the one of the interface that the env names, before the name."""
    nodes = (
        Node(name="a", fabric_address="10.9.0.1"),
        Node(name="b", env={"NCCL_SOCKET_IFNAME": "=eth0"}),
        Node(name="c", env={"GLOO_SOCKET_IFNAME": "ib7"}),
        Node(name="d", address="fd00::4"),
    )
    known = _facts("a", "b", "c", "d")
    script: Script[MeshResult] = MESH.script(Facts(cluster=Cluster(nodes=nodes), contacts=known.contacts))
    next(script)
    asked = script.send({name: _listening(f"10.0.0.{at}") for at, name in enumerate("abcd", 1)})
    targets = {target[0] for ask in asked.values() for target in ask.fields["targets"]}
    assert targets == {"10.9.0.1", "10.0.0.2", "c", "fd00::4"}


def test_another_rendezvous_port() -> None:
    """MASTER_PORT of the first node is the one that is tried."""
    cluster = Cluster(nodes=(Node(name="a", env={"MASTER_PORT": "12345"}), Node(name="b")))
    script: Script[MeshResult] = MESH.script(Facts(cluster=cluster, contacts=_facts("a", "b").contacts))
    assert next(script)["b"].fields["ports"] == [12345, 0]


@pytest.mark.ci
@pytest.mark.parametrize("first", [b"", b"E", b"x" * 32 + b"E", TOKEN.encode()[:-1]])
def test_a_stranger_is_not_served(first: bytes) -> None:
    """One that is silent or sends a part of the token is closed after a second, one with a wrong token at once."""

    async def story(a: AgentLink, _b: AgentLink) -> None:
        (bound,) = await listen(a, 0)
        reader, writer = await asyncio.open_connection(HERE, bound["port"])
        writer.write(first)
        with within(5), suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()

    tell(story)
