"""Sessions with simulated supervisors in another process: they speak as the real one does, and misbehave on demand."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from deadlines import slowness, until
from made_events import list_fields

from aboard.core.cluster.node import Node
from aboard.core.plan.plan import Start
from aboard.core.run.events import Event
from aboard.core.run.lease import Lease
from aboard.core.run.rank_phases import BEACON_PHASES
from aboard.testing.fake_supervisor import FakeNodeFaults
from aboard.testing.simulated_transport import SimulatedTransport, run_simulator
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.node_session import NodeSession, SessionState
from aboard.transport.supervisor_messages import OutputChunk

NODES, RANKS = 20, 8
LEASE = Lease(seconds=20.0, beat=1.0, grace=1.0)


class Heard:
    """Holds of some acted nodes, and all that they tell; `parts` says what goes wrong on which node."""

    def __init__(self, nodes: int, parts: dict[str, FakeNodeFaults] | None = None, lease: Lease = LEASE) -> None:
        self.events: list[Event] = []
        self.pieces: list[OutputChunk] = []
        self.sampled: Counter[str] = Counter()
        self.states: dict[str, list[SessionState]] = {}
        self._parts = parts or {}
        self._lease = lease
        self._names = [f"n{number}" for number in range(nodes)]
        self.holds: dict[str, NodeSession] = {}

    async def act(self, script: Callable[["Heard"], Awaitable[None]]) -> None:
        async with run_simulator() as path:
            fleet = NodeDialer(
                lambda node: SimulatedTransport(path, faults=self._parts.get(node.name, FakeNodeFaults())), seconds=5.0
            )
            self.holds = {name: self._hold(name, fleet) for name in self._names}
            await asyncio.gather(*(hold.begin() for hold in self.holds.values()))
            try:
                await script(self)
            finally:
                await asyncio.gather(*(hold.leave() for hold in self.holds.values()))

    async def start(self) -> None:
        starts = ((hold, name) for hold in self.holds.values() for name in _children(hold.node.name))
        await asyncio.gather(*(hold.start(Start(child=name, argv=("train",))) for hold, name in starts))

    async def end(self) -> None:
        await asyncio.gather(*(hold.end() for hold in self.holds.values()))
        await asyncio.wait_for(asyncio.gather(*(hold.wait_gone() for hold in self.holds.values())), 10 * slowness())

    def count(self, kind: str) -> int:
        return sum(event.kind == kind for event in self.events)

    def _hold(self, name: str, fleet: NodeDialer) -> NodeSession:
        states = self.states.setdefault(name, [])
        return NodeSession(
            Node(name=name),
            fleet,
            run="run",
            key="key",
            lease=self._lease,
            on_event=self.events.append,
            on_output=self.pieces.append,
            on_state=lambda state, _why: states.append(state),
            on_samples=lambda node, samples: self.sampled.update({node: len(samples["children"])}),
        )


@pytest.mark.ci
def test_ranks_come_through_their_phases_one_dies_and_all_end() -> None:
    """Every rank tells every phase; the one that dies says why; then every supervisor leaves with no event missed."""
    victim = "n3.5"

    async def script(heard: Heard) -> None:
        await heard.start()
        ranks = NODES * RANKS
        await until(lambda: heard.count("phase") >= (ranks - 1) * len(BEACON_PHASES) and heard.count("exited") == 1)
        await until(lambda: len(heard.sampled) == NODES)
        await heard.end()

    heard = Heard(NODES, {"n3": FakeNodeFaults(dies={victim: 2.8})})
    asyncio.run(heard.act(script))
    assert heard.count("started") == NODES * RANKS
    assert [
        (event.node, event.child, list_fields(event)["type"]) for event in heard.events if event.kind == "raised"
    ] == [("n3", victim, "RuntimeError")]
    codes = Counter(list_fields(event)["code"] for event in heard.events if event.kind == "exited")
    assert codes == {1: 1, -15: NODES * RANKS - 1}
    assert heard.count("ended") == NODES
    assert all(states == [SessionState.CONNECTED, SessionState.LOST] for states in heard.states.values())
    for name, hold in heard.holds.items():
        seqs = [event.seq for event in heard.events if event.node == name]
        assert (hold.missed, seqs) == (0, list(range(1, len(seqs) + 1)))
    ended = Counter((piece.child, piece.stream) for piece in heard.pieces if piece.end)
    assert len(ended) == 2 * NODES * RANKS
    assert set(ended.values()) == {1}
    said = b"".join(piece.data for piece in heard.pieces if (piece.child, piece.stream) == (victim, "stderr"))
    assert said.endswith(b"an illegal memory access was encountered\n")


def test_stacks_and_signals() -> None:
    """Stacks come of those that run; a signal ends a rank as it would a process."""

    async def script(heard: Heard) -> None:
        await heard.start()
        await until(lambda: heard.count("started") == RANKS)
        hold = heard.holds["n0"]
        await hold.signal("n0.0", 9)
        stacks = await hold.stacks()
        assert stacks.pop("n0.0").endswith("it has exited")
        assert len(stacks) == RANKS - 1
        assert all("most recent call first" in text for text in stacks.values())
        await heard.end()

    heard = Heard(1)
    asyncio.run(heard.act(script))
    assert [list_fields(event)["code"] for event in heard.events if event.kind == "exited"] == [-9] + [-15] * (
        RANKS - 1
    )


@pytest.mark.ci
def test_a_node_that_falls_silent_is_cut_then_gone() -> None:
    """Nothing comes from it any more, not even to a new connection; the others go on."""

    async def script(heard: Heard) -> None:
        await heard.start()
        await until(lambda: heard.states["n0"][-1] is SessionState.LOST)
        assert heard.states["n1"] == [SessionState.CONNECTED]

    # Long enough for the beats of the other node on a busy machine.
    heard = Heard(2, {"n0": FakeNodeFaults(silent=0.3)}, Lease(seconds=0.6 * slowness(), beat=0.2, grace=0.1))
    asyncio.run(heard.act(script))
    assert heard.states["n0"] == [SessionState.CONNECTED, SessionState.DISCONNECTED, SessionState.LOST]


@pytest.mark.ci
def test_a_cut_loses_nothing() -> None:
    """A new connection finds the supervisor that was there, and hears what was told meanwhile."""

    async def script(heard: Heard) -> None:
        await heard.start()
        await until(lambda: heard.count("started") == RANKS)
        link = heard.holds["n0"]._link
        assert link is not None
        await link.close()
        await until(lambda: heard.count("phase") == RANKS * len(BEACON_PHASES))
        await heard.end()

    heard = Heard(1)
    asyncio.run(heard.act(script))
    assert heard.states["n0"] == [
        SessionState.CONNECTED,
        SessionState.DISCONNECTED,
        SessionState.CONNECTED,
        SessionState.LOST,
    ]
    assert [event.seq for event in heard.events] == list(range(1, len(heard.events) + 1))


def _children(node: str) -> list[str]:
    return [f"{node}.{local}" for local in range(RANKS)]
