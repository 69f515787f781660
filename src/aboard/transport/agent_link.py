"""A link: one node's live agent, asked and answered in frames."""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aboard.agent import frames
from aboard.core.cluster.node import Node
from aboard.diagnoses import AgentRequestError, ProtocolError, TransportError, Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import escape_text
from aboard.transport import agent_bootstrap
from aboard.transport.transport import ByteStream, OnPhase, StreamEnding, Transport

CHUNK = 65536
# A shell that prints more than this before our marker isn't greeting, it is broken or hostile.
NOISE_LIMIT = 256 * 1024
# A bridge that hears nothing for this long is alone: its head was cut off without a word.
SILENCE_SECONDS = 30.0
# A clock that rings so much too late shows that the loop was held up; and how many times a wait may grow by that.
LATE_SECONDS = 0.05
MOST_PATIENCE = 5
# How much of what a far end said goes into a message.
QUOTE_CHARS = 500

OnFrame = Callable[[frames.Message], None]


class AgentLink:
    """Sends questions and pairs the answers; frames that answer nothing go to `on_frame`."""

    def __init__(
        self, node: Node, stream: ByteStream, splitter: frames.FrameSplitter, hello: frames.Message, noise: str
    ) -> None:
        self.node = node
        self.hello = hello
        self.noise = noise
        self.on_frame: OnFrame = lambda _message: None
        self.lost: TransportError | None = None
        self._stream = stream
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[frames.Message]] = {}
        self._splitter = splitter
        self._closing: asyncio.Task[StreamEnding] | None = None
        self._gone = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    def begin(self, bodies: list[bytes]) -> None:
        """Takes the frames that came with the hello, then reads on until the stream ends."""
        self._reading = asyncio.create_task(self._read(bodies))

    async def ask(self, op: str, within: float, /, *, tail: bytes | memoryview = b"", **fields: Any) -> frames.Message:
        """One question, one answer; raises AskError, ProtocolError or Unreachable(LOST). A tail is sent as it is."""
        if self.lost is not None:
            raise self.lost
        number = next(self._ids)
        answer: asyncio.Future[frames.Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(within):
                message = {"op": op, "id": number, **fields}
                self._stream.write(frames.pack_tailed(message, tail) if tail else frames.pack(message))
                # A far end that is stopped takes nothing in: this waits too.
                await self._stream.drain()
            await _wait_patiently(answer, within)
            reply = answer.result()
        except (TimeoutError, asyncio.InvalidStateError):
            raise Unreachable(
                UnreachableReason.SILENT, f"{self.node.name} did not answer within {within:g} s"
            ) from None
        finally:
            del self._waiting[number]
        if "error" in reply:
            raise AgentRequestError(f"{self.node.name}: {_format_remote_value(reply['error'])}")
        return reply

    def tell(self, op: str, **fields: Any) -> None:
        """Sends without waiting for an answer."""
        if self.lost is None:
            self._stream.write(frames.pack({"op": op, **fields}))

    @property
    def ending(self) -> StreamEnding:
        return self._stream.ending

    async def wait_gone(self) -> None:
        await self._gone.wait()

    async def close(self) -> StreamEnding:
        """Ends the stream and what carried it; safe to call again, and from several places."""
        if self._closing is None:
            if self._reading is not None:
                self._reading.cancel()
            self._fail(Unreachable(UnreachableReason.LOST, f"the link to {self.node.name} is closed"))
            self._closing = asyncio.create_task(self._stream.close())
        return await asyncio.shield(self._closing)

    async def _read(self, bodies: list[bytes]) -> None:
        lost: TransportError = Unreachable(UnreachableReason.LOST, f"the connection to {self.node.name} ended")
        try:
            while True:
                for body in bodies:
                    self._take(frames.unpack(body))
                data = await self._stream.read(CHUNK)
                if not data:
                    break
                bodies = self._splitter.feed(data)
        except frames.FrameError as error:
            lost = ProtocolError(f"{self.node.name} sent {error}")
        except OSError as error:
            lost = Unreachable(UnreachableReason.LOST, f"the connection to {self.node.name} broke: {error}")
        finally:
            self._fail(lost)

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
                    # Who asked may be cancelled before it looks; that is no error of its own.
                    waiting.exception()


async def _wait_patiently(answer: "asyncio.Future[frames.Message]", within: float) -> None:
    """Waits for the time given and for as long as we ourselves were held up in it: that is no silence of the node's.

    On a head that is busy or was stopped, the clock rings before the answers that lie there are read.
    """
    clock = asyncio.get_running_loop().time
    left, last = within, clock() + MOST_PATIENCE * within
    while not answer.done() and left > 0:
        due = clock() + left
        await asyncio.wait([answer], timeout=left)
        late = clock() - due
        left = min(late, last - clock()) if late > LATE_SECONDS else 0.0


async def open_link(node: Node, transport: Transport, seconds: float, on_phase: OnPhase) -> AgentLink:
    """Dials, ships the agent and waits for its hello; raises Unreachable with the reason, leaving nothing behind."""
    stream = await transport.open(node, on_phase)
    try:
        async with asyncio.timeout(seconds):
            return await _receive_hello(node, transport, stream, on_phase)
    except TimeoutError:
        raise _build_timeout_error(node, await stream.close(hurry=True), seconds) from None
    except frames.FrameError as error:
        await stream.close(hurry=True)
        raise Unreachable(UnreachableReason.GARBAGE, f"{node.name} sent {error}") from None
    except BaseException:
        # Cancelled or failed: the program that carried the stream must not outlive it.
        with suppress(asyncio.CancelledError):
            await asyncio.shield(asyncio.create_task(stream.close(hurry=True)))
        raise


async def _receive_hello(node: Node, transport: Transport, stream: ByteStream, on_phase: OnPhase) -> AgentLink:
    start = agent_bootstrap.build_bootstrap(SILENCE_SECONDS)
    # Not drained: a far end that prints without end and reads nothing is told by what it prints.
    stream.write(start.stdin)
    noise, rest = await _skip_noise(node, transport, stream, start.marker)
    splitter = frames.FrameSplitter()
    bodies = splitter.feed(rest)
    while not bodies:
        data = await stream.read(CHUNK)
        if not data:
            raise Unreachable(UnreachableReason.LOST, f"{node.name}: the agent ended before it said hello")
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
    """What was printed before the marker, and what came behind it."""
    received = bytearray()
    while True:
        data = await stream.read(CHUNK)
        if not data:
            reason, problem = transport.classify(await stream.close())
            raise Unreachable(
                reason, f"{node.name}: {escape_text(problem, QUOTE_CHARS)}", detail=_format_printable(received)
            )
        # Only where it may be new: whoever sends byte by byte must not cost us the square of it.
        searched = max(0, len(received) - len(marker))
        received += data
        found = received.find(marker, searched)
        if found >= 0:
            return bytes(received[:found]), bytes(received[found + len(marker) :])
        if len(received) > NOISE_LIMIT:
            problem = f"{node.name} printed {len(received)} bytes and no agent spoke"
            raise Unreachable(UnreachableReason.SHELL_NOISE, problem, detail=_format_printable(received))


def _build_timeout_error(node: Node, ending: StreamEnding, seconds: float) -> Unreachable:
    """Names the phase at which the time ran out: each has another cause."""
    for phase, what in (
        ("logged-in", "login worked, but no agent spoke"),
        ("keys", "the key exchange worked, but the login did not end"),
        ("greeted", "the key exchange did not end"),
        ("connected", "the port is open, but no ssh server greeted"),
    ):
        if phase in ending.phases:
            return Unreachable(UnreachableReason.SILENT, f"{node.name}: {what} within {seconds:g} s", detail=phase)
    return Unreachable(UnreachableReason.TIMED_OUT, f"{node.name}: no connection within {seconds:g} s")


def _format_remote_value(value: object) -> str:
    """What a far end put into a frame, fit for a screen; what is no text or number is only named."""
    return (
        escape_text(str(value), QUOTE_CHARS)
        if isinstance(value, str | int | float)
        else f"of type {type(value).__name__}"
    )


def _format_printable(raw: bytes | bytearray) -> str:
    """The beginning of what a far end printed, fit for a screen: no control characters, no wall of text."""
    text = raw[:2000].decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()[:200]
