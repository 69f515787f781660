"""A link: requests to one node's live agent and its replies, as frames."""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, thread_time
from typing import Any

from aboard.agent import frames
from aboard.core.cluster.node import Node
from aboard.diagnoses import AgentRequestError, ProtocolError, TransportError, Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import escape_text
from aboard.transport import agent_bootstrap
from aboard.transport.transport import ByteStream, OnPhase, StreamEnding, Transport

CHUNK = 65536
# A shell that prints more than this before our marker is broken or hostile.
NOISE_LIMIT = 256 * 1024
# A bridge that receives nothing for this long has lost its head without notice.
SILENCE_SECONDS = 30.0
# A timer this late shows that our loop was blocked; for that, a wait may be extended to this multiple of its length.
LATE_SECONDS = 0.05
MOST_PATIENCE = 5
# Time on one link that no share limits: 10,000 events that a supervisor kept while it was cut off take half of it.
BURST_SECONDS = 1.0
# How much of a node's output goes into a message.
QUOTE_CHARS = 500

OnFrame = Callable[[frames.Message], None]


class AgentLink:
    """Sends requests and matches replies; all other frames go to `on_frame`."""

    def __init__(
        self, node: Node, stream: ByteStream, splitter: frames.FrameSplitter, hello: frames.Message, noise: str
    ) -> None:
        self.node = node
        self.hello = hello
        self.noise = noise
        self.on_frame: OnFrame = lambda _message: None
        self.lost: TransportError | None = None
        # The share of our time that frames from this node may take; a faster sender waits.
        self.most_share = 1.0
        self._busy = 0.0
        self._rested = monotonic()
        self._stream = stream
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[frames.Message]] = {}
        self._splitter = splitter
        self._closing: asyncio.Task[StreamEnding] | None = None
        self._gone = asyncio.Event()
        self._tail_turn = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None

    def begin(self, bodies: list[bytes]) -> None:
        """Handles the frames that came with the hello, then reads until the stream ends."""
        self._reading = asyncio.create_task(self._read(bodies))

    async def ask(self, op: str, within: float, /, *, tail: bytes | memoryview = b"", **fields: Any) -> frames.Message:
        """Returns the reply; raises AgentRequestError, ProtocolError or Unreachable. A tail is sent raw."""
        if self.lost is not None:
            raise self.lost
        number = next(self._ids)
        answer: asyncio.Future[frames.Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(within):
                message = {"op": op, "id": number, **fields}
                # A stopped agent reads nothing, so this may block too.
                if tail:
                    # One at a time: asyncio copies all that is queued with every write.
                    async with self._tail_turn:
                        self._stream.write(frames.pack_before_tail(message, len(tail)))
                        self._stream.write(tail)
                        await self._stream.drain()
                else:
                    self._stream.write(frames.pack(message))
                    await self._stream.drain()
            await _wait_patiently(answer, within)
            reply = answer.result()
        except (TimeoutError, asyncio.InvalidStateError):
            raise Unreachable(UnreachableReason.SILENT, f"{self.node.name} did not reply within {within:g} s") from None
        finally:
            del self._waiting[number]
        if "error" in reply:
            raise AgentRequestError(f"{self.node.name}: {_format_remote_value(reply['error'])}")
        return reply

    def tell(self, op: str, **fields: Any) -> None:
        """Sends without waiting for a reply."""
        if self.lost is None:
            self._stream.write(frames.pack({"op": op, **fields}))

    @property
    def ending(self) -> StreamEnding:
        return self._stream.ending

    async def wait_gone(self) -> None:
        await self._gone.wait()

    async def close(self) -> StreamEnding:
        """Closes the stream and its program; safe to call again, and concurrently."""
        if self._closing is None:
            if self._reading is not None:
                self._reading.cancel()
            self._fail(Unreachable(UnreachableReason.LOST, f"the link to {self.node.name} is closed"))
            self._closing = asyncio.create_task(self._stream.close())
        return await asyncio.shield(self._closing)

    async def _read(self, bodies: list[bytes]) -> None:
        lost: TransportError = Unreachable(UnreachableReason.LOST, f"the connection to {self.node.name} ended")
        began = thread_time()
        try:
            while True:
                for body in bodies:
                    self._take(frames.unpack_any(body))
                await self._rest_after(thread_time() - began)
                data = await self._stream.read(CHUNK)
                if not data:
                    break
                began = thread_time()
                bodies = self._splitter.feed(data)
        except frames.FrameError as error:
            lost = ProtocolError(f"{self.node.name} sent {error}")
        except OSError as error:
            lost = Unreachable(UnreachableReason.LOST, f"the connection to {self.node.name} broke: {error}")
        finally:
            self._fail(lost)

    async def _rest_after(self, busy: float) -> None:
        """Waits as long as this link has taken more than its share of our time; a burst is free."""
        now = monotonic()
        self._busy = max(0.0, self._busy - (now - self._rested) * self.most_share) + busy
        self._rested = now
        if self._busy > BURST_SECONDS:
            await asyncio.sleep((self._busy - BURST_SECONDS) / self.most_share)

    def _take(self, message: frames.Message) -> None:
        number = message.get("re")
        waiting = self._waiting.get(number) if isinstance(number, int) else None
        if waiting is None:
            self.on_frame(message)
        elif not waiting.done():
            waiting.set_result(message)

    def _fail(self, error: TransportError) -> None:
        if self.lost is None:
            self.lost = error
            self._gone.set()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(error)
                    # The caller may be cancelled before it retrieves the exception; asyncio must not warn then.
                    waiting.exception()


async def _wait_patiently(answer: "asyncio.Future[frames.Message]", within: float) -> None:
    """Waits this long, plus as long as our own loop was blocked meanwhile: that is not the node's silence.

    On a head that is busy or was stopped, the timer fires before pending replies are read.
    """
    clock = asyncio.get_running_loop().time
    left, last = within, clock() + MOST_PATIENCE * within
    while not answer.done() and left > 0:
        due = clock() + left
        await asyncio.wait([answer], timeout=left)
        late = clock() - due
        left = min(late, last - clock()) if late > LATE_SECONDS else 0.0


async def open_link(node: Node, transport: Transport, seconds: float, on_phase: OnPhase) -> AgentLink:
    """Connects, sends the agent and waits for its hello; raises Unreachable with the reason, leaving nothing behind."""
    stream = await transport.open(node, on_phase)
    try:
        async with asyncio.timeout(seconds):
            return await _receive_hello(node, transport, stream, on_phase)
    except TimeoutError:
        phase, problem = transport.explain_timeout(await stream.close(hurry=True))
        if phase:
            problem = f"{node.name}: {problem} within {seconds:g} s"
            raise Unreachable(UnreachableReason.SILENT, problem, detail=phase) from None
        problem = f"{node.name}: no connection within {seconds:g} s"
        raise Unreachable(UnreachableReason.TIMED_OUT, problem) from None
    except frames.FrameError as error:
        await stream.close(hurry=True)
        raise Unreachable(UnreachableReason.GARBAGE, f"{node.name} sent {error}") from None
    except BaseException:
        # Cancelled or failed: the program that carried the stream must not outlive it.
        with suppress(asyncio.CancelledError):
            await asyncio.shield(asyncio.create_task(stream.close(hurry=True)))
        raise


async def _receive_hello(node: Node, transport: Transport, stream: ByteStream, on_phase: OnPhase) -> AgentLink:
    start = stream.bootstrap
    if start is None:
        start = agent_bootstrap.build_bootstrap(SILENCE_SECONDS)
        # Not drained: a shell that prints without end and reads nothing is recognised by what it prints.
        stream.write(start.stdin)
    noise, rest = await _skip_noise(node, transport, stream, start.marker)
    splitter = frames.FrameSplitter()
    bodies = splitter.feed(rest)
    while not bodies:
        data = await stream.read(CHUNK)
        if not data:
            raise Unreachable(UnreachableReason.LOST, f"{node.name}: the agent exited before its first frame")
        bodies = splitter.feed(data)
    hello = frames.unpack(bodies[0])
    if hello.get("hello") != frames.VERSION:
        problem = (
            f"{node.name} speaks version {_format_remote_value(hello.get('hello'))} of the protocol, not"
            f" {frames.VERSION}"
        )
        raise Unreachable(UnreachableReason.WRONG_VERSION, problem)
    on_phase("agent")
    link = AgentLink(node, stream, splitter, hello, _format_printable(noise))
    link.begin(bodies[1:])
    return link


async def _skip_noise(node: Node, transport: Transport, stream: ByteStream, marker: bytes) -> tuple[bytes, bytes]:
    """Returns what was printed before the marker and what followed it."""
    received = bytearray()
    while True:
        data = await stream.read(CHUNK)
        if not data:
            reason, problem = transport.classify(await stream.close())
            raise Unreachable(
                reason, f"{node.name}: {escape_text(problem, QUOTE_CHARS)}", detail=_format_printable(received)
            )
        # Search only new data: input that comes byte by byte must not take quadratic time.
        searched = max(0, len(received) - len(marker))
        received += data
        found = received.find(marker, searched)
        if found >= 0:
            return bytes(received[:found]), bytes(received[found + len(marker) :])
        if len(received) > NOISE_LIMIT:
            problem = f"{node.name} printed {len(received)} bytes, but no agent started"
            raise Unreachable(UnreachableReason.SHELL_NOISE, problem, detail=_format_printable(received))


def _format_remote_value(value: object) -> str:
    """A value from a frame, safe for a screen; for other types than text and numbers, the type's name."""
    return (
        escape_text(str(value), QUOTE_CHARS)
        if isinstance(value, str | int | float)
        else f"of type {type(value).__name__}"
    )


def _format_printable(raw: bytes | bytearray) -> str:
    """The beginning of what the node printed, without control characters, cut to 200 characters."""
    text = raw[:2000].decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()[:200]
