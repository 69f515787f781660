"""A hold: the head's end of one node's keeper. It beats, re-attaches after a cut, and misses nothing."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from time import monotonic, time
from typing import Any

from aboard.agent import frames
from aboard.core.errors import AskError, ProtocolError, Unreachable, WireError
from aboard.core.event import Event
from aboard.core.lease import Lease
from aboard.core.node import Node
from aboard.core.plan import Start
from aboard.core.reason import Reason
from aboard.wires.fleet import Fleet
from aboard.wires.link import Link
from aboard.wires.told import Piece, clock_of, count_of, event_of, piece_of

__all__ = ["CREDIT", "Hold", "OnEvent", "OnPiece", "OnState", "Piece", "State"]

# How much output may be under way from one node: enough for a fast link, too little to delay a beat.
CREDIT = 256 * 1024
ASK_SECONDS = 10.0
REDIAL_SECONDS = 0.5


class State(Enum):
    """Held; cut off, while the keeper's lease runs; or gone, with the reason."""

    HELD = "held"
    CUT = "cut"
    GONE = "gone"


OnEvent = Callable[[Event], None]
OnPiece = Callable[[Piece], None]
OnState = Callable[[State, str], None]


class Hold:
    """One run on one node. Events come in order, each once; output comes in order, each byte once."""

    def __init__(
        self,
        node: Node,
        fleet: Fleet,
        *,
        run: str,
        key: str,
        lease: Lease,
        on_event: OnEvent = lambda _event: None,
        on_piece: OnPiece = lambda _piece: None,
        on_state: OnState = lambda _state, _why: None,
    ) -> None:
        self.node = node
        self.state = State.CUT
        self.missed = 0
        self._fleet = fleet
        self._run = run
        self._key = key
        self._lease = lease
        self._on_event = on_event
        self._on_piece = on_piece
        self._on_state = on_state
        self._acked = 0
        self._have: dict[str, int] = {}
        self._ended: set[str] = set()
        self._offset = (float("inf"), 0.0)
        self._heard = self._attached = monotonic()
        self._link: Link | None = None
        self._held = asyncio.Event()
        self._gone = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Puts a keeper on the node; raises WireError when that fails."""
        await self._attach("hold")
        self._beating = asyncio.create_task(self._beat())

    async def resume(self) -> None:
        """Attaches to the keeper that an earlier head left there, with all that it has to tell."""
        await self._attach("attach")
        self._beating = asyncio.create_task(self._beat())

    async def start(self, start: Start) -> None:
        """Starts a child; through a cut it is asked again, which is harmless: the keeper knows the name."""
        await self._ask(
            "start",
            child=start.child,
            argv=list(start.argv),
            env=dict(start.env),
            secrets=list(start.secrets),
            cwd=start.cwd,
        )

    async def signal(self, child: str, number: int) -> None:
        await self._ask("signal", child=child, signal=int(number))

    async def end(self, grace: float | None = None) -> None:
        """Asks the keeper to end all; its `ended` event says when that is done."""
        await self._ask("end", grace=self._lease.grace if grace is None else grace)

    async def leave(self) -> None:
        """Lets go without ending anything: the lease runs from here, and who still asks is told no."""
        self._held.clear()
        self._gone.set()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
        if self._link is not None:
            await self._link.close()

    async def wait_gone(self) -> None:
        await self._gone.wait()

    async def _ask(self, op: str, **fields: Any) -> None:
        while True:
            await self._held_or_gone()
            if self._gone.is_set():
                raise Unreachable(Reason.LOST, f"{self.node.name}: its keeper is gone")
            link = self._link
            if link is None:
                # Cut again between the news and now.
                continue
            try:
                await link.ask(op, ASK_SECONDS, **fields)
            except (Unreachable, ProtocolError) as error:
                self._cut(link, error.seen)
            else:
                return

    async def _held_or_gone(self) -> None:
        waiters = [asyncio.create_task(event.wait()) for event in (self._held, self._gone)]
        try:
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()

    async def _attach(self, op: str) -> None:
        dialled = await self._fleet.dial(self.node)
        link = dialled.link
        # Frames come before this coroutine runs again: what they ask for goes to the link that they came by.
        link.on_frame = lambda message: self._take(link, message)
        try:
            # Good enough for the events that come before the first beat.
            self._offset = min(self._offset, (dialled.seconds, clock_of(link.hello.get("wall")) - time()))
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
            self.missed = count_of(reply, "lost_events")
        except frames.FrameError as error:
            await link.close()
            raise ProtocolError(f"{self.node.name} sent {error}") from None
        except BaseException:
            await link.close()
            raise
        self._link = link
        self._heard = self._attached = monotonic()
        self._become(State.HELD, "")

    async def _beat(self) -> None:
        """Beats while held; while cut, dials again until the keeper's lease must be over."""
        while self.state is not State.GONE:
            if self.state is State.HELD:
                await self._beat_once()
            else:
                await self._reattach()

    async def _beat_once(self) -> None:
        assert self._link is not None  # noqa: S101 - held means a link
        link, sent, wall = self._link, monotonic(), time()
        try:
            reply = await link.ask("beat", 2 * self._lease.beat)
            trip = monotonic() - sent
            theirs = clock_of(reply.get("wall"))
        except WireError as error:
            self._cut(link, error.seen)
            return
        except frames.FrameError as error:
            self._cut(link, f"{self.node.name} sent {error}")
            return
        self._heard = monotonic()
        # The shortest trip has the least doubt; old ones age, since clocks drift over weeks.
        self._offset = min((self._offset[0] * 1.05, self._offset[1]), (trip, theirs - (wall + trip / 2)))
        with suppress(TimeoutError):
            await asyncio.wait_for(link.wait_gone(), max(0.0, self._lease.beat - trip))
            self._cut(link, link.lost.seen if link.lost else "the link ended")

    async def _reattach(self) -> None:
        left = self._heard + self._lease.seconds + self._lease.beat - monotonic()
        if left <= 0:
            self._become(State.GONE, f"no contact for the whole lease of {self._lease.seconds:g} s")
            return
        try:
            async with asyncio.timeout(left):
                # A node that answers and breaks off, again and again, is not dialled without a pause.
                await asyncio.sleep(self._attached + REDIAL_SECONDS - monotonic())
                await self._attach("attach")
        except AskError as error:
            self._become(State.GONE, error.seen)
        except (WireError, TimeoutError):
            await asyncio.sleep(min(REDIAL_SECONDS, max(0.0, left)))

    def _cut(self, link: Link, why: str) -> None:
        """Once for each link, and never after the keeper is gone."""
        if link is not self._link or self.state is State.GONE:
            return
        self._link = None
        self._become(State.CUT, why)
        # In the background: an ssh that waits for a dead network takes its time to leave.
        task = asyncio.create_task(link.close())
        _CLOSING.add(task)
        task.add_done_callback(_CLOSING.discard)

    def _become(self, state: State, why: str) -> None:
        self.state = state
        (self._held.set if state is State.HELD else self._held.clear)()
        if state is State.GONE:
            self._gone.set()
        self._on_state(state, why)

    def _take(self, link: Link, message: frames.Message) -> None:
        """Raises FrameError for what no keeper sends; the link is then lost."""
        if "event" in message:
            event = event_of(message, self.node.name, self._offset[1])
            if event.seq > self._acked:
                self._acked = event.seq
                self._on_event(event)
            link.tell("ack", seq=self._acked)
        elif "out" in message:
            self._take_output(link, message)
        elif "gone" in message and link is self._link:
            # The bridge lives and the keeper doesn't: nothing is left to hold.
            self._become(State.GONE, f"the keeper on {self.node.name} is gone")

    def _take_output(self, link: Link, message: frames.Message) -> None:
        piece = piece_of(message, self.node.name, self._have)
        name = f"{piece.child}/{piece.stream}"
        last = piece.end and name not in self._ended
        if piece.data or piece.dropped or last:
            self._have[name] = piece.offset + len(piece.data)
            if last:
                self._ended.add(name)
            self._on_piece(piece)
        sent = len(message.get("data", ""))
        if sent:
            link.tell("credit", bytes=sent)


_CLOSING: set[asyncio.Task[Any]] = set()
