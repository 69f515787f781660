"""Dialling many nodes: handshakes are bounded, sessions are not, drops are tried again."""

import asyncio

import pytest
from deadlines import until

from aboard.core.cluster.node import Node, TransportKind
from aboard.diagnoses import Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.transport import agent_link, node_dialer as fleets
from aboard.transport.local import LocalTransport
from aboard.transport.node_dialer import NodeDialer, choose_transport
from aboard.transport.ssh import SshTransport
from aboard.transport.transport import ByteStream, OnPhase


class Flaky(LocalTransport):
    """Refuses the first few dials for a reason, then is this machine; counts who dials at once."""

    def __init__(self, reason: UnreachableReason, times: int) -> None:
        self._reason = reason
        self._times = times
        self.dials = 0
        self.now = 0
        self.most = 0

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream:
        self.dials += 1
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.002)
        self.now -= 1
        if self.dials <= self._times:
            raise Unreachable(self._reason, f"{node.name}: {self._reason.value}")
        return await LocalTransport().open(node, on_phase)


RETRIED = (UnreachableReason.DROPPED, UnreachableReason.STEP_ABORTED)


@pytest.mark.parametrize("reason", RETRIED)
def test_a_dropped_handshake_is_tried_again(reason: UnreachableReason) -> None:
    """As sshd's MaxStartups drops at random, and as Slurm aborts a step for another node; what it took is told."""
    wire = Flaky(reason, 2)
    phases: list[str] = []

    async def story() -> int:
        dialled = await NodeDialer(lambda _node: wire).dial(Node(name="n1"), phases.append)
        await dialled.link.close()
        return dialled.drops

    assert asyncio.run(story()) == 2
    assert phases.count("dropped, trying again") == 2


@pytest.mark.parametrize("reason", [reason for reason in UnreachableReason if reason not in RETRIED])
def test_any_other_reason_is_final(reason: UnreachableReason) -> None:
    """A refused key does not become right by asking again, and asking again may lock the account."""
    wire = Flaky(reason, 9)
    with pytest.raises(Unreachable):
        asyncio.run(NodeDialer(lambda _node: wire).dial(Node(name="n1")))
    assert wire.dials == 1


def test_drops_without_end_are_a_reason_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six tries, spread over time, then it is said."""
    monkeypatch.setattr(fleets, "uniform", lambda _low, _high: 0.0)
    wire = Flaky(UnreachableReason.DROPPED, 99)
    with pytest.raises(Unreachable) as caught:
        asyncio.run(NodeDialer(lambda _node: wire).dial(Node(name="n1")))
    assert caught.value.reason is UnreachableReason.DROPPED
    assert wire.dials == fleets.TRIES


def test_handshakes_are_bounded_and_sessions_are_not() -> None:
    """Twelve links are open at once though only two may shake hands at a time."""
    wire = Flaky(UnreachableReason.DROPPED, 0)

    async def story() -> None:
        fleet = NodeDialer(lambda _node: wire, handshakes=2)
        dialled = await asyncio.gather(*(fleet.dial(Node(name=f"n{number}")) for number in range(12)))
        await asyncio.gather(*(each.link.ask("ping", 5) for each in dialled))
        await asyncio.gather(*(each.link.close() for each in dialled))

    asyncio.run(story())
    assert wire.most == 2


def test_the_head_itself_needs_no_ssh() -> None:
    """Its own name or address takes the local wire; every other node takes ssh."""
    assert isinstance(choose_transport(Node(name="n1", transport=TransportKind.LOCAL)), LocalTransport)
    assert isinstance(choose_transport(Node(name="n1")), SshTransport)


def test_a_link_that_is_open_is_not_dialled_again() -> None:
    """What was begun or kept is handed out once; one that was lost meanwhile is dialled anew; the rest is closed."""
    wire = Flaky(UnreachableReason.DROPPED, 0)
    one, two = Node(name="n1"), Node(name="n2")

    async def story() -> None:
        fleet = NodeDialer(lambda _node: wire)
        fleet.begin([one, two])
        first = await fleet.dial(one)
        assert wire.dials == 2
        fleet.keep({"n1": first})
        assert await fleet.dial(one) is first
        await first.link.close()
        fleet.keep({"n1": first})
        again = await fleet.dial(one)
        assert again is not first
        assert wire.dials == 3
        await again.link.close()
        lost = await fleet.dial(two)
        fleet.begin([two], links=2)
        third, fourth = await fleet.dial(two), await fleet.dial(two)
        assert wire.dials == 5
        assert len({id(each) for each in (lost, third, fourth)}) == 3
        for each in (lost, third, fourth):
            await each.link.close()
        await fleet.close()

    asyncio.run(story())


def test_a_link_that_was_begun_waits_for_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may prepare for hours before its ranks need it; an agent that hears nothing exits."""
    monkeypatch.setattr(agent_link, "SILENCE_SECONDS", 0.6)
    monkeypatch.setattr(fleets, "PING_SECONDS", 0.1)

    async def story() -> None:
        wire = Flaky(UnreachableReason.DROPPED, 0)
        fleet = NodeDialer(lambda _node: wire)
        fleet.begin([Node(name="n1")], links=2)
        first = await fleet.dial(Node(name="n1"))
        await until(lambda: first.link.lost is not None)
        second = await fleet.dial(Node(name="n1"))
        await second.link.ask("ping", 5)
        assert wire.dials == 2
        for each in (first, second):
            await each.link.close()
        await fleet.close()

    asyncio.run(story())


def test_a_begun_link_that_was_lost_is_dialled_anew() -> None:
    async def story() -> None:
        wire = Flaky(UnreachableReason.DROPPED, 0)
        fleet = NodeDialer(lambda _node: wire)
        fleet.begin([Node(name="n1")], links=2)
        first, _second = [task for _node, task in fleet._started["n1"]]
        link = (await first).link
        await link.close()
        assert link.lost is not None
        dialled = await fleet.dial(Node(name="n1"))
        assert dialled.link is not link
        await dialled.link.ask("ping", 5)
        await dialled.link.close()
        await fleet.close()

    asyncio.run(story())


def test_dials_that_nobody_asked_for_are_given_up() -> None:
    """A fleet that is closed leaves no program behind, also one that failed to be reached."""
    wire = Flaky(UnreachableReason.REFUSED, 1)

    async def story() -> None:
        fleet = NodeDialer(lambda _node: wire)
        fleet.begin([Node(name="n1"), Node(name="n2")])
        await until(lambda: wire.dials == 2)
        await fleet.close()

    asyncio.run(story())


def test_a_node_that_was_dialled_too_early_by_other_words_is_dialled_again() -> None:
    """A launch dials by what it can read quickly; what the whole file says counts."""

    async def story() -> None:
        wire = Flaky(UnreachableReason.DROPPED, 0)
        fleet = NodeDialer(lambda _node: wire)
        fleet.begin([Node(name="n1"), Node(name="n2", user="alice")])
        same, other = await fleet.dial(Node(name="n1", slots=8)), await fleet.dial(Node(name="n2", user="bob"))
        assert wire.dials == 3
        assert other.link.node.user == "bob"
        for dialled in (same, other):
            await dialled.link.close()
        await fleet.close()

    asyncio.run(story())
