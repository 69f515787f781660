"""A session with one node's supervisor: sends heartbeats, re-attaches after a disconnect, and loses nothing."""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from time import monotonic, time
from typing import Any

from aboard.agent import frames
from aboard.core.cluster.container import describe_container
from aboard.core.cluster.node import Node
from aboard.core.plan.plan import Start
from aboard.core.run.event_kinds import Ended
from aboard.core.run.events import Event
from aboard.core.run.lease import Lease
from aboard.diagnoses import AgentRequestError, ProtocolError, TransportError, Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import Untrusted
from aboard.transport.agent_link import AgentLink
from aboard.transport.node_dialer import DialResult, NodeDialer
from aboard.transport.supervisor_messages import (
    NO_STACKS,
    CopierEndpoint,
    OutputChunk,
    ScriptActivity,
    parse_activity,
    parse_children,
    parse_clock,
    parse_copier_endpoint,
    parse_count,
    parse_event,
    parse_lost_agents,
    parse_measurements,
    parse_missing_copies,
    parse_output,
    parse_stacks,
)

# An unacknowledged event costs the supervisor a little memory, and output has credit for more than this.
SETTLE_SECONDS = 0.05


class AckBatcher:
    """Batches acknowledgements of events and credit for output, over the link by which they came."""

    def __init__(self, link: AgentLink, most_credit: int) -> None:
        self.link = link
        self._most_credit = most_credit
        self._seq: int | None = None
        self._bytes = 0
        self._due: asyncio.TimerHandle | None = None

    def ack(self, seq: int, *, now: bool) -> None:
        """Acknowledges all events up to this one; `now` when the supervisor waits for it."""
        self._seq = seq
        self._settle_soon(now=now)

    def credit(self, count: int) -> None:
        """Returns credit for received bytes; a flood gets its credit before it runs out."""
        self._bytes += count
        self._settle_soon(now=self._bytes >= self._most_credit)

    def settle(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._seq is not None:
            self.link.tell("ack", seq=self._seq)
        if self._bytes:
            self.link.tell("credit", bytes=self._bytes)
        self._seq, self._bytes = None, 0

    def _settle_soon(self, *, now: bool) -> None:
        if now:
            self.settle()
        elif self._due is None:
            self._due = asyncio.get_running_loop().call_later(SETTLE_SECONDS, self.settle)


__all__ = [
    "CREDIT", "NO_STACKS", "NodeSession", "OnEvent", "OnOutput", "OnSamples", "OnState", "OutputChunk", "SessionState",
]  # fmt: skip

# How much output may be in flight from one node: enough for a fast link, too little to delay a beat.
CREDIT = 256 * 1024
# The share of the head's time that the frames of one node may take, so that a flood delays no other node.
MOST_SHARE = 0.25
ASK_SECONDS = 10.0
# For some 300 kB over a very slow link.
CODE_SECONDS = 60.0
REDIAL_SECONDS = 0.5
EARLY_LIMIT = 4 * 1024 * 1024
_LOG = logging.getLogger(__name__)


class SessionState(Enum):
    """Connected; disconnected, while the supervisor's lease runs; or lost, with the reason."""

    CONNECTED = "held"
    DISCONNECTED = "cut"
    LOST = "gone"


OnEvent = Callable[[Event], None]
OnOutput = Callable[[OutputChunk], None]
OnState = Callable[[SessionState, str], None]
OnSamples = Callable[[str, dict[str, Any]], None]


class NodeSession:
    """One run on one node. Events come in order, each once; output comes in order, each byte once."""

    def __init__(
        self,
        node: Node,
        dialer: NodeDialer,
        *,
        run: str,
        key: str,
        lease: Lease,
        known_children: frozenset[str] | None = None,
        on_event: OnEvent = lambda _event: None,
        on_output: OnOutput = lambda _chunk: None,
        on_state: OnState = lambda _state, _why: None,
        on_samples: OnSamples = lambda _node, _samples: None,
    ) -> None:
        self.node = node
        self.state = SessionState.DISCONNECTED
        self.missed = 0
        # The first frame of the last agent that was reached.
        self.hello: Mapping[str, Any] = {}
        # What `parse_lost_agents` returned, if the supervisor or its guard was killed.
        self.lost_agents: dict[str, float] = {}
        self._dialer = dialer
        self._run = run
        self._key = key
        self._lease = lease
        self.set_callbacks(known_children, on_event, on_output, on_state, on_samples)
        self._children: set[str] = set()
        self._acked = 0
        self._have: dict[str, int] = {}
        self._ended: set[str] = set()
        self._seen_end = False
        self._offset = (float("inf"), 0.0)
        self._last_contact = self._attached = monotonic()
        self._link: AgentLink | None = None
        self._acks: AckBatcher | None = None
        self._connected = asyncio.Event()
        self._gone = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None

    def set_callbacks(
        self,
        known_children: frozenset[str] | None,
        on_event: OnEvent,
        on_output: OnOutput,
        on_state: OnState,
        on_samples: OnSamples,
    ) -> None:
        """Sends what it receives from here on there."""
        # A supervisor may name no others; None if an earlier head started them.
        self._known_children = known_children
        self._on_event, self._on_output, self._on_state, self._on_samples = on_event, on_output, on_state, on_samples

    async def begin(self) -> None:
        """Starts a supervisor on the node; raises TransportError if that fails."""
        await self._attach("hold")
        self._beating = asyncio.create_task(self._beat())

    async def resume(self) -> None:
        """Attaches to the supervisor that an earlier head started, and gets all its events."""
        await self._attach("attach")
        self._beating = asyncio.create_task(self._beat())

    async def reserve(self, port: int, *, fixed: bool = False) -> int:
        """Reserves this port on the node, or any free one, until a child listens on it."""
        return parse_count(await self._ask("reserve", port=port, fixed=fixed), "port")

    async def send_code(self, code: bytes) -> None:
        """Stores a zip file of Python modules in the supervisor's directory, for children to import."""
        await self._ask("code", wait=CODE_SECONDS, tail=code)

    async def start(self, start: Start, *, await_port: int = 0) -> None:
        """Starts a child; repeating the request after a disconnect is harmless, since the supervisor knows the name.

        A child with a beacon connects to its master on `await_port` only after `release`.
        """
        self._children.add(start.child)
        await self._ask("start", await_port=await_port, **_describe_start(start))

    async def start_standby(self, start: Start, handed: Collection[str]) -> None:
        """Starts a process that a later `start` in the same slot turns into a rank, with the `handed` variables."""
        await self._ask("standby", handed=list(handed), **_describe_start(start))

    async def release(self, port: int) -> None:
        """Lets the node's ranks connect to rank 0, which listens on this port."""
        await self._ask("listening", port=port)

    async def get_capture(self, number: int) -> Any:
        """The launcher that an event `captured` has announced, undecoded."""
        return (await self._ask("capture", number=number)).get("capture")

    async def release_launcher(self, number: int, code: int) -> None:
        """Lets a captured launcher exit with this code, or run if it is `RUN_ITSELF`; repeating it is harmless."""
        await self._ask("release", number=number, code=code)

    async def print_lines(self, number: int, stream: str, lines: bytes, *, last: bool = False) -> bool:
        """Lets a captured launcher print this; False if it has too much to print yet, and this is not the last."""
        reply = await self._ask("print", number=number, stream=stream, lines=frames.bytes_to_text(lines), last=last)
        return bool(reply.get("taken"))

    async def get_activity(self) -> ScriptActivity:
        """What the script does now."""
        return parse_activity(await self._ask("activity"))

    async def open_copier(self, **fields: Any) -> CopierEndpoint:
        """Starts the process that copies parts of checkpoints, with a listener; the key travels here only."""
        link = self._link
        address = self.node.fabric_address or (str(link.hello.get("address") or "") if link else "") or self.node.target
        return parse_copier_endpoint(await self._ask("copies", do="open", address=address, **fields))

    async def introduce_copiers(self, peers: Sequence[Any]) -> None:
        """Tells the copier where the others listen: number, host, port and ranks of each."""
        await self._ask("copies", do="peers", peers=list(peers))

    async def wait_for_copies(self, seconds: float) -> dict[str, int]:
        """Waits until everything is copied to this node; returns the bytes that are missing, by checkpoint."""
        return parse_missing_copies(await self._ask("copies", do="status", wait=seconds + ASK_SECONDS, seconds=seconds))

    async def signal(self, child: str, number: int) -> None:
        await self._ask("signal", child=child, signal=int(number))

    async def stacks(self, children: Collection[str] | None = None, within: float = 2.0) -> dict[str, Untrusted]:
        """Each child's Python stacks, or NO_STACKS followed by the reason."""
        selection = {} if children is None else {"children": list(children)}
        reply = await self._ask("stacks", within=within, wait=within + ASK_SECONDS, **selection)
        try:
            return parse_stacks(reply, self._children)
        except frames.FrameError as error:
            raise ProtocolError(f"{self.node.name} sent {error}") from None

    async def request_snapshot(self, within: float, **fields: Any) -> tuple[Any, float]:
        """A snapshot of the node, undecoded, and the node's clock minus ours."""
        reply = await self._ask("snapshot", within=within, wait=within + ASK_SECONDS, **fields)
        return reply.get("snapshot"), self._offset[1]

    async def end(self, grace: float | None = None) -> None:
        """Asks the supervisor to terminate everything; its `ended` event reports completion."""
        await self._ask("end", grace=self._lease.grace if grace is None else grace)

    async def leave(self, *, keep: bool = False) -> None:
        """Disconnects without terminating anything: the lease runs from here, and pending requests fail.

        With `keep`, the link of a supervisor that has ended goes back to the dialer, for the next session.
        """
        self._connected.clear()
        self._gone.set()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
        if self._acks is not None:
            self._acks.settle()
        if self._link is None:
            return
        if keep and self._seen_end and self.state is SessionState.LOST and not self.lost_agents:
            self._link.on_frame = lambda _message: None
            self._link.most_share = 1.0
            self._dialer.keep({self.node.name: DialResult(link=self._link, seconds=0.0, drops=0)})
        else:
            await self._link.close()

    @property
    def link(self) -> AgentLink | None:
        """The link to the agent while it is connected."""
        return self._link if self.state is SessionState.CONNECTED else None

    @property
    def last_contact(self) -> float:
        """When the supervisor last replied, by the monotonic clock."""
        return self._last_contact

    @property
    def clock_offset(self) -> float:
        """The node's clock minus ours."""
        return self._offset[1]

    async def wait_gone(self) -> None:
        await self._gone.wait()

    async def _ask(self, op: str, *, wait: float = ASK_SECONDS, **fields: Any) -> frames.Message:
        while True:
            await self.wait_connected_or_lost()
            if self._gone.is_set():
                raise Unreachable(UnreachableReason.LOST, f"{self.node.name}: its supervisor can no longer be reached")
            link = self._link
            if link is None:
                # Disconnected again in the meantime.
                continue
            try:
                _LOG.debug("%s: asked to %s", self.node.name, op)
                return await link.ask(op, wait, **fields)
            except (Unreachable, ProtocolError) as error:
                self._disconnect(link, error.seen)

    async def wait_connected_or_lost(self) -> None:
        """Returns when there is a connection, or will never be one again."""
        if self._connected.is_set() or self._gone.is_set():
            return
        waiters = [asyncio.create_task(event.wait()) for event in (self._connected, self._gone)]
        try:
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()

    async def _attach(self, op: str) -> None:
        dialled = await self._dialer.dial(self.node)
        link = dialled.link
        # Frames may arrive before this coroutine runs again, and the reply lists the children that they may name.
        early_frames = _EarlyFrames()
        link.on_frame = early_frames.take
        try:
            sent, wall = monotonic(), time()
            reply = await link.ask(
                op,
                ASK_SECONDS,
                run=self._run,
                key=self._key,
                lease={"seconds": self._lease.seconds, "beat": self._lease.beat, "grace": self._lease.grace},
                silence=self._lease.seconds + self._lease.beat,
                acked=self._acked,
                have=self._have,
                credit=CREDIT,
            )
            self._set_clock(monotonic() - sent, wall, reply)
            self.missed = parse_count(reply, "lost_events")
            named = parse_children(reply)
            self._children |= named if self._known_children is None else named & self._known_children
        except frames.FrameError as error:
            await link.close()
            raise ProtocolError(f"{self.node.name} sent {error}") from None
        except AgentRequestError:
            lost = early_frames.find_lost_agents()
            # A supervisor stays until its lease expires: one that is gone before was killed.
            if "guard" in lost or monotonic() < self._last_contact + self._lease.seconds:
                self.lost_agents = lost
            await link.close()
            raise
        except BaseException:
            await link.close()
            raise
        link.most_share = MOST_SHARE
        self._link, self.hello = link, link.hello
        self._last_contact = self._attached = monotonic()
        self._set_state(SessionState.CONNECTED, "")
        # Acknowledgements go to the link by which the frames came.
        acks = self._acks = AckBatcher(link, CREDIT // 4)
        link.on_frame = lambda message: self._take(acks, message)
        try:
            for message in early_frames.frames:
                self._take(acks, message)
        except frames.FrameError as error:
            self._disconnect(link, f"{self.node.name} sent {error}")

    async def _beat(self) -> None:
        """Sends heartbeats while connected; otherwise redials until the supervisor's lease must have expired."""
        while self.state is not SessionState.LOST:
            if self.state is SessionState.CONNECTED:
                await self._beat_once()
            else:
                await self._reattach()

    async def _beat_once(self) -> None:
        assert self._link is not None  # noqa: S101 - connected means a link
        link, sent, wall = self._link, monotonic(), time()
        try:
            reply = await link.ask("beat", 2 * self._lease.beat)
            trip = monotonic() - sent
            self._set_clock(trip, wall, reply)
        except TransportError as error:
            self._disconnect(link, error.seen)
            return
        except frames.FrameError as error:
            self._disconnect(link, f"{self.node.name} sent {error}")
            return
        self._last_contact = monotonic()
        with suppress(TimeoutError):
            await asyncio.wait_for(link.wait_gone(), max(0.0, self._lease.beat - trip))
            self._disconnect(link, link.lost.seen if link.lost else "the link ended")

    def _set_clock(self, trip: float, wall: float, reply: frames.Message) -> None:
        """Uses the shortest round trip, which is the most exact; old ones age, since clocks drift over weeks."""
        offset = parse_clock(reply.get("wall")) - (wall + trip / 2)
        self._offset = min((self._offset[0] * 1.05, self._offset[1]), (trip, offset))

    async def _reattach(self) -> None:
        left = self._last_contact + self._lease.seconds + self._lease.beat - monotonic()
        if left <= 0:
            self._set_state(SessionState.LOST, f"no contact for the full lease of {self._lease.seconds:g} s")
            return
        try:
            async with asyncio.timeout(left):
                # A node that connects and disconnects repeatedly is not dialled without a pause.
                await asyncio.sleep(self._attached + REDIAL_SECONDS - monotonic())
                await self._attach("attach")
        except AgentRequestError as error:
            self._set_state(SessionState.LOST, error.seen)
        except (TransportError, TimeoutError):
            await asyncio.sleep(min(REDIAL_SECONDS, max(0.0, left)))

    def _disconnect(self, link: AgentLink, why: str) -> None:
        """Acts once per link, and never after the supervisor has exited."""
        if link is not self._link or self.state is SessionState.LOST:
            return
        self._link = None
        self._set_state(SessionState.DISCONNECTED, why)
        # In the background: an ssh that waits for a dead network exits slowly.
        task = asyncio.create_task(link.close())
        _CLOSING.add(task)
        task.add_done_callback(_CLOSING.discard)

    def _set_state(self, state: SessionState, why: str) -> None:
        word = "over" if state is SessionState.LOST else state.name.lower()
        _LOG.info("%s: session %s%s", self.node.name, word, f": {why}" if why else "")
        self.state = state
        (self._connected.set if state is SessionState.CONNECTED else self._connected.clear)()
        if state is SessionState.LOST:
            self._gone.set()
        self._on_state(state, why)

    def _take(self, acks: AckBatcher, message: frames.Message) -> None:
        """Raises FrameError for a frame that no supervisor sends; the link is then lost."""
        if "event" in message:
            event = parse_event(message, self.node.name, self._offset_by(message), self._children)
            if event.seq > self._acked:
                self._acked = event.seq
                self._on_event(event)
            # A supervisor whose ranks have exited only waits for this acknowledgement; one that repeats itself doesn't.
            acks.ack(self._acked, now=isinstance(event.body, Ended) and not self._seen_end)
            self._seen_end |= isinstance(event.body, Ended)
        elif "out" in message:
            self._take_output(acks, message)
        elif "samples" in message:
            samples = parse_measurements(message, self._offset[1], self._children)
            self._on_samples(self.node.name, {**samples, "clock_error": self._offset[0] / 2})
        elif "gone" in message and acks.link is self._link:
            # The bridge is alive and the supervisor is not: the session is over.
            self.lost_agents = parse_lost_agents(message)
            self._set_state(SessionState.LOST, f"the supervisor on {self.node.name} is no longer running")

    def _offset_by(self, message: frames.Message) -> float:
        """The node's clock minus ours; it is inexact after long round trips, but no event may lie in the future."""
        return max(self._offset[1], parse_clock(message.get("wall")) - time())

    def _take_output(self, acks: AckBatcher, message: frames.Message) -> None:
        chunk = parse_output(message, self.node.name, self._offset_by(message), self._have, self._children)
        name = f"{chunk.child}/{chunk.stream}"
        last = chunk.end and name not in self._ended
        if chunk.data or chunk.dropped or last:
            self._have[name] = chunk.offset + len(chunk.data)
            if last:
                self._ended.add(name)
            self._on_output(chunk)
        length = len(message.get("data", ""))
        if length:
            acks.credit(length)


def _describe_start(start: Start) -> dict[str, Any]:
    return {
        "child": start.child,
        "argv": list(start.argv),
        "env": dict(start.env),
        "secrets": list(start.secrets),
        "cwd": start.cwd,
        "beacon": start.beacon,
        "capture": start.capture,
        "code": start.code,
        "cores": list(start.cores),
        **describe_container(start.container, start.setup),
    }


class _EarlyFrames:
    """Frames that follow a reply which is not processed yet; bounded."""

    def __init__(self) -> None:
        self.frames: list[frames.Message] = []
        self._bytes = 0

    def take(self, message: frames.Message) -> None:
        self._bytes += len(frames.pack(message))
        if self._bytes > EARLY_LIMIT:
            raise frames.FrameError("too much data before its reply")
        self.frames.append(message)

    def find_lost_agents(self) -> dict[str, float]:
        """What a bridge that found no supervisor has told of it."""
        with suppress(frames.FrameError):
            return next((parse_lost_agents(message) for message in self.frames if "gone" in message), {})
        return {}


_CLOSING: set[asyncio.Task[Any]] = set()
