"""A session with a simulated supervisor that can lie: whatever it sends, nothing is made up and nobody hangs."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from deadlines import slowness, until, within
from hypothesis import given, strategies as st
from made_events import list_fields

from aboard.agent import frames
from aboard.core.cluster.node import Node
from aboard.core.plan.plan import Start
from aboard.core.run.event_codec import KINDS
from aboard.core.run.event_kinds import Ended
from aboard.core.run.events import Event
from aboard.core.run.lateness import UNMEASURED
from aboard.core.run.lateness_meter import GroupArrivals
from aboard.core.run.lease import Lease
from aboard.diagnoses import ProtocolError, Unreachable
from aboard.transport import node_dialer
from aboard.transport.agent_bootstrap import MARKER
from aboard.transport.local import LocalTransport
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.node_session import CREDIT, REDIAL_SECONDS, NodeSession, SessionState
from aboard.transport.supervisor_messages import (
    NO_STACKS,
    OutputChunk,
    parse_clock,
    parse_event,
    parse_measurements,
    parse_output,
)
from aboard.transport.transport import ByteStream, OnPhase, StreamEnding

NODE = Node(name="n1")
HELLO = {"hello": frames.VERSION, "wall": time.time()}
Script = Callable[["Acted", frames.Message], None]

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


class Acted:
    """A far end in memory: `script` sees each question and says what it likes."""

    bootstrap = None

    def __init__(self, script: Script) -> None:
        self.asked: list[frames.Message] = []
        self._script = script
        self._out: asyncio.Queue[bytes] = asyncio.Queue()
        self._splitter: frames.FrameSplitter | None = None

    def say(self, **message: Any) -> None:
        self._out.put_nowait(frames.pack(message))

    def hang_up(self) -> None:
        self._out.put_nowait(b"")

    async def read(self, size: int) -> bytes:
        return await self._out.get()

    def write(self, data: bytes | memoryview) -> None:
        if self._splitter is None:
            token = bytes(data).rpartition(b"<aboard ")[2].partition(b">")[0]
            self._splitter = frames.FrameSplitter()
            self._out.put_nowait(MARKER % token + frames.pack(HELLO))
            return
        for body in self._splitter.feed(bytes(data)):
            message = frames.unpack(body)
            self.asked.append(message)
            self._script(self, message)

    async def drain(self) -> None:
        return

    async def close(self, *, hurry: bool = False) -> StreamEnding:
        self.hang_up()
        return self.ending

    @property
    def ending(self) -> StreamEnding:
        return StreamEnding(exit_code=None)


class ActedWire(LocalTransport):
    """Each dial meets the next of the scripts; the last one stays."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self.streams: list[Acted] = []

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream:
        script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        self.streams.append(Acted(script))
        return self.streams[-1]


class Heard:
    """A hold over acted supervisors, and what it told."""

    def __init__(self, *scripts: Script, lease: Lease | None = None) -> None:
        self.wire = ActedWire(*scripts)
        self.events: list[Event] = []
        self.pieces: list[OutputChunk] = []
        self.states: list[tuple[SessionState, str]] = []
        self.samples: list[dict[str, Any]] = []
        self.hold = NodeSession(
            NODE,
            NodeDialer(lambda _node: self.wire),
            run="r",
            key="k",
            lease=lease or Lease(seconds=1.0, beat=0.05, grace=0.0),
            on_event=self.events.append,
            on_output=self.pieces.append,
            on_state=lambda state, why: self.states.append((state, why)),
            on_samples=lambda _node, samples: self.samples.append(samples),
        )


def _supervisor(far: Acted, message: frames.Message) -> None:
    """An honest supervisor: it answers what it is asked."""
    if message["op"] in ("hold", "attach"):
        far.say(re=message["id"], children={"a": {"state": "running"}}, lost_events=0, wall=time.time())
    elif message["op"] == "beat":
        far.say(re=message["id"], wall=time.time())
    elif "id" in message:
        far.say(re=message["id"])


def _then(*said: dict[str, Any]) -> Script:
    """An honest supervisor that says these things right behind its first answer, in the same breath."""

    def script(far: Acted, message: frames.Message) -> None:
        _supervisor(far, message)
        if message["op"] in ("hold", "attach"):
            for each in said:
                far.say(**each)

    return script


def _ops(far: Acted, op: str) -> list[frames.Message]:
    return [message for message in far.asked if message["op"] == op]


def test_what_comes_with_the_first_answer_is_acknowledged_and_credited() -> None:
    """Events and output follow the answer before the hold has taken it in; they must count all the same."""
    event = {"event": 1, "kind": "started", "child": "a", "wall": time.time(), "pid": 5}
    heard = Heard(_then(event, {"out": "a", "stream": "stdout", "offset": 0, "wall": 1.0, "data": "xy"}))

    async def story() -> None:
        await heard.hold.begin()
        await until(lambda: _ops(heard.wire.streams[0], "credit"))
        await heard.hold.leave()

    asyncio.run(story())
    far = heard.wire.streams[0]
    assert [message["seq"] for message in _ops(far, "ack")] == [1]
    assert [message["bytes"] for message in _ops(far, "credit")] == [2]
    assert list_fields(heard.events[0]) == {"pid": 5}


@pytest.mark.parametrize(
    "nonsense",
    [
        {"event": "x", "kind": "started", "wall": 1.0, "child": "a"},
        {"event": None, "kind": "started", "wall": 1.0, "child": "a"},
        {"event": 10**30, "kind": "started", "wall": 1.0, "child": "a"},
        {"event": 1, "kind": "started", "wall": "noon", "child": "a"},
        {"event": 1, "kind": "started", "wall": float("nan"), "child": "a"},
        {"event": 1, "kind": "started", "wall": 10**400, "child": "a"},
        {"event": 1, "kind": "started", "wall": 1.0, "child": [1]},
        {"event": 1, "kind": "started", "wall": 1.0, "child": "nobody"},
        {"event": 1, "kind": "started", "wall": 1.0, "child": "a", "pid": -1},
        {"event": 1, "kind": "generation", "wall": 1.0},
        {"event": 1, "kind": ["started"], "wall": 1.0, "child": "a"},
        {"event": 1, "kind": "exited", "wall": 1.0, "child": "a", "code": "0"},
        {"event": 1, "kind": "exited", "wall": 1.0, "child": "a"},
        {"event": 1, "kind": "ended", "wall": 1.0, "stubborn": ["x"]},
        {"event": 1, "kind": "phase", "wall": 1.0, "child": "a", "phase": "dancing"},
        {"event": 1, "kind": "phase", "wall": 1.0, "child": "a"},
        {"event": 1, "kind": "raised", "wall": 1.0, "child": "a", "message": 5},
        {"out": "a", "stream": "stdout", "offset": 0, "wall": 1.0, "data": "\u20ac"},
        {"out": "a", "stream": "stdout", "offset": 0, "wall": 1.0, "data": "\ud800"},
        {"out": "a", "stream": "stdout", "offset": -1, "wall": 1.0, "data": "x"},
        {"out": "a", "stream": "stdout", "offset": 1e9, "wall": 1.0, "data": "x"},
        {"out": "a", "stream": "stdout", "offset": 0, "wall": 1.0, "data": 7},
        {"out": "a", "stream": "stdout", "offset": 0, "data": "x"},
        {"out": "a", "stream": "stdlog", "offset": 0, "wall": 1.0, "data": "x"},
        {"out": "nobody", "stream": "stdout", "offset": 0, "wall": 1.0, "data": "x"},
        {"out": [], "stream": {}, "offset": 0, "wall": 1.0, "data": "x"},
        {"samples": []},
        {"samples": {"children": {}}},
        {"samples": {"wall": 1.0, "node": {"load": float("nan")}}},
        {"samples": {"wall": 1.0, "node": {"memory": -1}}},
        {"samples": {"wall": 1.0, "children": {"nobody": {}}}},
        {"samples": {"wall": 1.0, "children": {"a": 7}}},
        {"samples": {"wall": 1.0, "children": {"a": {"step": 1.5}}}},
        {"samples": {"wall": 1.0, "children": {"a": {"step": 2**60}}}},
        {"samples": {"wall": 1.0, "children": {"a": {"cpu": float("inf")}}}},
        {"samples": {"wall": 1.0, "children": {"a": {"rss": "much"}}}},
    ],
)
def test_a_frame_of_the_wrong_shape_ends_the_link_and_nothing_else(nonsense: dict[str, Any]) -> None:
    """It is a cut with the reason, from which the hold will attach again; nothing of the nonsense was told."""
    heard = Heard(_then(nonsense))

    async def story() -> None:
        await heard.hold.begin()
        await until(lambda: len(heard.states) >= 2)
        await heard.hold.leave()

    asyncio.run(story())
    assert [state for state, _why in heard.states] == [SessionState.CONNECTED, SessionState.DISCONNECTED]
    assert heard.states[1][1].startswith("n1 sent ")
    assert not heard.events
    assert not heard.pieces
    assert not heard.samples


def test_a_node_that_always_breaks_off_is_not_dialled_without_a_pause() -> None:
    """It answers and then sends nonsense, again and again: dials are spread, and asking ends with the hold."""
    heard = Heard(_then({"event": "x"}), lease=Lease(seconds=30.0, beat=0.05, grace=0.0))

    async def story() -> None:
        began = time.monotonic()
        await heard.hold.begin()
        await until(lambda: len(heard.wire.streams) == 3)
        assert time.monotonic() - began >= REDIAL_SECONDS
        await heard.hold.leave()

    asyncio.run(story())


def test_clocks_that_show_nonsense_are_a_cut() -> None:
    """A beat's answer without a time is no answer; the offset stays what it was."""

    def script(far: Acted, message: frames.Message) -> None:
        if message["op"] == "beat":
            far.say(re=message["id"], wall=float("inf"))
        else:
            _supervisor(far, message)

    heard = Heard(script, _supervisor)

    async def story() -> None:
        await heard.hold.begin()
        await until(lambda: len(heard.states) >= 3)
        await heard.hold.leave()

    asyncio.run(story())
    assert abs(heard.hold._offset[1]) < 3600


def test_output_that_comes_twice_is_told_once() -> None:
    """After a cut the supervisor sends from where it was told, and a little is known already; gaps are counted."""
    of = {"out": "a", "stream": "stdout", "wall": 1.0}
    first = {**of, "offset": 0, "data": "abcdef"}
    again = {**of, "offset": 4, "data": "efgh"}
    gap = {**of, "offset": 20, "data": "z", "dropped": 999}
    end = {**of, "offset": 21, "data": "", "end": True}
    heard = Heard(_then(first, again, gap, gap, end, end))

    async def story() -> None:
        await heard.hold.begin()
        await until(lambda: heard.pieces and heard.pieces[-1].end)
        await heard.hold.leave()

    asyncio.run(story())
    assert sum(message["bytes"] for message in _ops(heard.wire.streams[0], "credit")) == len("abcdefefghzz")
    told = [(piece.offset, piece.data, piece.dropped, piece.end) for piece in heard.pieces]
    assert told == [(0, b"abcdef", 0, False), (6, b"gh", 0, False), (20, b"z", 12, False), (21, b"", 0, True)]


def test_events_come_once_and_in_order() -> None:
    """A replay of what is known is told to nobody; all of it is acknowledged in one word."""
    event = {"kind": "started", "child": "a", "wall": time.time()}
    heard = Heard(_then({**event, "event": 1}, {**event, "event": 2}, {**event, "event": 1}, {**event, "event": 2}))

    async def story() -> None:
        await heard.hold.begin()
        await until(lambda: _ops(heard.wire.streams[0], "ack"))
        await heard.hold.leave()

    asyncio.run(story())
    assert [event.seq for event in heard.events] == [1, 2]
    assert [message["seq"] for message in _ops(heard.wire.streams[0], "ack")] == [2]


def test_nothing_is_heard_before_it_happened() -> None:
    """A slow trip leaves the node's clock in doubt: what it tells then seems to come from the future, and must not."""
    late = {"kind": "started", "child": "a", "wall": time.time() + 900.0}
    heard = Heard(_then({**late, "event": 1}, {"out": "a", "stream": "stdout", "offset": 0, "data": "x", **late}))

    async def story() -> None:
        await heard.hold.begin()
        await until(lambda: heard.pieces)
        await heard.hold.leave()

    asyncio.run(story())
    assert heard.events[0].at <= heard.pieces[0].at <= time.time()


def test_a_replay_of_what_is_known_is_acknowledged_again() -> None:
    """Else its supervisor would keep it, and stay, for ever."""
    event = {"kind": "started", "child": "a", "wall": time.time()}
    heard = Heard(_then({**event, "event": 1}))

    async def story() -> None:
        await heard.hold.begin()
        far = heard.wire.streams[0]
        await until(lambda: _ops(far, "ack"))
        far.say(**event, event=1)
        await until(lambda: len(_ops(far, "ack")) == 2)
        await heard.hold.leave()

    asyncio.run(story())
    assert [message["seq"] for message in _ops(heard.wire.streams[0], "ack")] == [1, 1]


def test_the_last_event_is_acknowledged_at_once_and_a_flood_gets_its_credit_early() -> None:
    """A supervisor that has ended waits for that word only; and output must not stop for the sake of fewer words."""
    flood = {"out": "a", "stream": "stdout", "offset": 0, "wall": 1.0, "data": "x" * (CREDIT // 4)}
    heard = Heard(_supervisor)

    async def story() -> None:
        await heard.hold.begin()
        far = heard.wire.streams[0]
        for said in (flood, {"event": 1, "kind": "ended", "wall": time.time(), "killed": 0, "stubborn": []}):
            far.asked.clear()
            far.say(**said)
            # Some turns of the loop, and no time to speak of.
            for _ in range(9):
                await asyncio.sleep(0)
            assert _ops(far, "credit") + _ops(far, "ack")
        await heard.hold.leave()

    asyncio.run(story())


def test_gone_is_the_last_state() -> None:
    """The supervisor is gone and then the stream breaks as well: nobody is told of a cut that could be mended."""
    heard = Heard(_supervisor)

    async def story() -> None:
        await heard.hold.begin()
        far = heard.wire.streams[0]
        far.say(gone="supervisor")
        far.hang_up()
        await asyncio.wait_for(heard.hold.wait_gone(), slowness())
        await asyncio.sleep(0.15)
        with pytest.raises(Unreachable, match="can no longer be reached"):
            await heard.hold.start(Start(child="a", argv=("true",)))
        await heard.hold.leave()

    asyncio.run(story())
    assert [state for state, _why in heard.states] == [SessionState.CONNECTED, SessionState.LOST]


def test_a_start_is_asked_again_after_a_cut() -> None:
    """The stream ends before the answer: the same start goes to the next bridge."""

    def hangs_up(far: Acted, message: frames.Message) -> None:
        if message["op"] == "start":
            far.hang_up()
        else:
            _supervisor(far, message)

    heard = Heard(hangs_up, _supervisor)

    async def story() -> None:
        await heard.hold.begin()
        await heard.hold.start(Start(child="a", argv=("true",)))
        await heard.hold.leave()

    asyncio.run(story())
    assert [len(_ops(far, "start")) for far in heard.wire.streams] == [1, 1]


def test_a_silent_node_is_gone_when_its_lease_must_be_over() -> None:
    """Nobody answers any more: the hold tries until the supervisor can't hold either, and whoever asks is told."""

    def silent(far: Acted, message: frames.Message) -> None:
        return

    heard = Heard(_supervisor, silent, lease=Lease(seconds=0.3, beat=0.05, grace=0.0))

    async def story() -> None:
        await heard.hold.begin()
        heard.wire.streams[0].hang_up()
        began = time.monotonic()
        with within(2), pytest.raises(Unreachable, match="can no longer be reached"):
            await heard.hold.start(Start(child="a", argv=("true",)))
        assert time.monotonic() - began > 0.25
        await heard.hold.leave()

    asyncio.run(story())
    assert heard.states[-1][0] is SessionState.LOST


def test_leaving_tells_whoever_still_asks() -> None:
    """A question that waits out a cut is not left waiting for a hold that nobody tends any more."""

    def silent(far: Acted, message: frames.Message) -> None:
        return

    heard = Heard(_supervisor, silent, lease=Lease(seconds=30.0, beat=0.05, grace=0.0))

    async def story() -> None:
        await heard.hold.begin()
        heard.wire.streams[0].hang_up()
        await until(lambda: heard.hold.state is SessionState.DISCONNECTED)
        asking = asyncio.create_task(heard.hold.signal("a", 2))
        await asyncio.sleep(0)
        await heard.hold.leave()
        with pytest.raises(Unreachable):
            await asyncio.wait_for(asking, slowness())

    asyncio.run(story())


@given(st.fixed_dictionaries({}, optional={
    "event": st.integers(0, 5) | ANYTHING,
    "kind": st.sampled_from(sorted(KINDS)) | ANYTHING,
    "wall": st.floats() | ANYTHING,
    "child": st.just("a") | ANYTHING,
    **dict.fromkeys(("code", "pid", "why", "killed", "stubborn", "phase", "type", "message", "trace"), ANYTHING),
}))  # fmt: skip
def test_any_frame_is_an_event_or_a_frame_error(message: frames.Message) -> None:
    """Whatever types its fields have."""
    try:
        event = parse_event(message, "n1", 0.0, {"", "a"})
    except frames.FrameError:
        return
    assert event.seq >= 0
    assert parse_clock(event.at) == event.at


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "out": st.just("a") | ANYTHING,
            "stream": st.just("stdout") | ANYTHING,
            "wall": st.floats() | ANYTHING,
            "offset": st.integers(0, 40) | ANYTHING,
            **dict.fromkeys(("data", "end", "dropped"), ANYTHING),
        },
    ),
    st.integers(0, 20),
)
def test_any_frame_is_output_or_a_frame_error(message: frames.Message, have: int) -> None:
    """And what is output never goes back behind what is known."""
    try:
        piece = parse_output(message, "n1", 0.0, {"a/stdout": have}, {"", "a"})
    except frames.FrameError:
        return
    assert piece.offset >= (have if (piece.child, piece.stream) == ("a", "stdout") else 0)
    assert piece.dropped >= 0


@given(st.dictionaries(st.sampled_from(["wall", "node", "children"]), ANYTHING))
def test_any_samples_are_figures_or_a_frame_error(samples: dict[str, Any]) -> None:
    """Whatever types they have; names are those of children that were started."""
    try:
        told = parse_measurements({"samples": samples}, 0.0, {"a"})
    except frames.FrameError:
        return
    assert set(told["children"]) <= {"a"}
    assert parse_clock(told["wall"]) == told["wall"]


ROW = st.tuples(ANYTHING | st.text(), ANYTHING | st.text(), ANYTHING | st.lists(st.integers()), ANYTHING, ANYTHING)


@given(st.fixed_dictionaries({}, optional={"groups": ANYTHING | st.lists(ROW.map(list)), "why": ANYTHING}))
def test_any_arrivals_are_those_of_groups_or_a_reason_or_a_frame_error(arrivals: dict[str, Any]) -> None:
    """A rank sends them: what a meter gets has the types that it expects."""
    try:
        told = parse_measurements({"samples": {"wall": 1.0, "children": {"a": {"arrivals": arrivals}}}}, 0.0, {"a"})
    except frames.FrameError:
        return
    found = told["children"]["a"]["arrivals"]
    assert found in UNMEASURED or all(isinstance(group, GroupArrivals) for group in found)


def test_arrivals_come_at_the_heads_time() -> None:
    row = ["0/a1/0", "tp\x1b[1m", [3, 5], [5_000_000, 6_500_000], 7]
    told = parse_measurements(
        {"samples": {"wall": 9.0, "children": {"a": {"arrivals": {"groups": [row]}}}}}, 2.0, {"a"}
    )
    (group,) = told["children"]["a"]["arrivals"]
    assert (group.times, group.last) == ({3: 3.0, 5: 4.5}, 7)
    assert "\x1b" not in group.name


def test_samples_and_output_come_at_the_heads_time() -> None:
    """A node whose clock is an hour ahead: what it says is put back by that hour; what it says besides is left out."""
    ahead = 3600.0
    samples = {"wall": time.time() + ahead, "node": {"load": 2.5, "mood": "x" * 999}}
    samples["children"] = {"a": {"step": 7, "step_seconds": 0.25, "rss": 2**30, "cpu": 1.5, "more": []}}
    piece = {"out": "a", "stream": "stdout", "offset": 0, "wall": time.time() + ahead, "data": "x"}

    def script(far: Acted, message: frames.Message) -> None:
        if message["op"] == "beat":
            far.say(re=message["id"], wall=time.time() + ahead)
            far.say(samples=samples)
            far.say(**piece)
        else:
            _supervisor(far, message)

    heard = Heard(script)

    async def story() -> None:
        await heard.hold.begin()
        heard.hold._offset = (9.0, 0.0)
        await until(lambda: len(heard.samples) >= 2 and heard.pieces)
        await heard.hold.leave()

    asyncio.run(story())
    told = heard.samples[-1]
    assert told["node"] == {"load": 2.5}
    assert told["children"] == {"a": {"step": 7, "step_seconds": 0.25, "rss": 2**30, "cpu": 1.5}}
    assert abs(told["wall"] - time.time()) < 60


def test_a_new_head_knows_the_children_from_the_first_answer() -> None:
    """Who resumes has started nobody; what comes in the same breath as the list of children is told all the same."""
    heard = Heard(_then({"event": 1, "kind": "exited", "child": "a", "wall": 1.0, "code": 3}))

    async def story() -> None:
        await heard.hold.resume()
        await until(lambda: heard.events)
        await heard.hold.leave()

    asyncio.run(story())
    assert list_fields(heard.events[0]) == {"code": 3}


@pytest.mark.parametrize("children", [[], {"x" * 201: {}}, {f"c{n}": {} for n in range(5000)}])
def test_a_node_can_not_have_more_children_than_a_node_has(children: Any) -> None:
    """A list of them that only a liar would send is no answer."""

    def script(far: Acted, message: frames.Message) -> None:
        far.say(re=message["id"], children=children, lost_events=0, wall=time.time())

    heard = Heard(script)
    with pytest.raises(ProtocolError):
        asyncio.run(heard.hold.begin())


def test_what_an_event_says_is_cut_to_size() -> None:
    """A node that sends megabytes with an event leaves the head with what was agreed, and with no key more."""
    said = {"type": "T" * 9999, "message": "m" * 10**6, "trace": "t" * 10**6, "more": "x" * 10**6}
    heard = Heard(_then({"event": 1, "kind": "raised", "child": "a", "wall": 1.0, **said}))

    async def story() -> None:
        await heard.hold.begin()
        await until(lambda: heard.events)
        await heard.hold.leave()

    asyncio.run(story())
    assert {key: len(text) for key, text in list_fields(heard.events[0]).items()} == {
        "type": 200,
        "message": 2000,
        "trace": 8000,
        "error": 0,
    }


def test_processes_that_would_not_end_are_told_by_number() -> None:
    """What can't be the number of a process is no event."""
    message: frames.Message = {"event": 1, "kind": "ended", "wall": 1.0, "killed": 1, "stubborn": [4711, 7]}
    assert parse_event(message, "n1", 0.0, ()).body == Ended(killed=1, stubborn=(4711, 7))
    for nonsense in ([-1], [7, 2**53], ["7"], "7"):
        with pytest.raises(frames.FrameError):
            parse_event({**message, "stubborn": nonsense}, "n1", 0.0, ())


def test_stacks_are_text_or_a_reason() -> None:
    """What the supervisor couldn't get has its reason behind a word that no stack begins with; others' are refused."""
    answers: list[Any] = [{"a": "Thread 0x1", "b": {"why": "it is stopped"}}, {"nobody": "x"}, {"a": 5}, None]

    def script(far: Acted, message: frames.Message) -> None:
        if message["op"] == "stacks":
            far.say(re=message["id"], stacks=answers.pop(0))
        else:
            _supervisor(far, message)

    heard = Heard(script)

    async def story() -> None:
        await heard.hold.begin()
        await heard.hold.start(Start(child="b", argv=("true",), beacon=True))
        assert await heard.hold.stacks() == {"a": "Thread 0x1", "b": NO_STACKS + "it is stopped"}
        for _ in range(3):
            with pytest.raises(ProtocolError):
                await heard.hold.stacks(["a"], within=0.5)
        await heard.hold.leave()

    asyncio.run(story())
    far = heard.wire.streams[0]
    assert [(message.get("children"), message["within"]) for message in _ops(far, "stacks")][:2] == [
        (None, 2.0),
        (["a"], 0.5),
    ]
    assert _ops(far, "start")[0]["beacon"] is True


@pytest.mark.parametrize("responds", [True, False])
def test_a_kept_link_is_used_again_only_if_it_still_responds(
    monkeypatch: pytest.MonkeyPatch, *, responds: bool
) -> None:
    """A network that was cut meanwhile may have left a connection that is dead without notice."""
    monkeypatch.setattr(node_dialer, "PONG_SECONDS", 0.05)

    def reply(acted: Acted, message: frames.Message) -> None:
        if responds:
            acted.say(re=message["id"])

    async def story() -> None:
        wire = ActedWire(reply)
        async with NodeDialer(lambda _node: wire) as dialer:
            first = await dialer.dial(NODE)
            dialer.keep({NODE.name: first})
            second = await dialer.dial(NODE)
            assert (second is first) == responds
            assert (first.link.lost is None) == responds
            assert len(wire.streams) == (1 if responds else 2)
            await second.link.close()

    asyncio.run(story())
