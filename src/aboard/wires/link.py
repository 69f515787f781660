"""A link: one node's live agent, asked and answered in frames."""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aboard.agent import frames
from aboard.core.node import Node
from aboard.core.words import visible
from aboard.diagnoses import AskError, ProtocolError, Unreachable, WireError
from aboard.diagnoses.reason import Reason
from aboard.wires import bootstrap, sshlog
from aboard.wires.wire import Ending, OnPhase, Stream, Wire

CHUNK = 65536
# A shell that prints more than this before our marker isn't greeting, it is broken or hostile.
NOISE_LIMIT = 256 * 1024
# A bridge that hears nothing for this long is alone: its head was cut off without a word.
SILENCE_SECONDS = 30.0
# A clock that rings so much too late shows that the loop was held up; and how many times a wait may grow by that.
LATE = 0.05
MOST_PATIENCE = 5
# How much of what a far end said goes into a message.
SAID = 500

OnFrame = Callable[[frames.Message], None]


class Link:
    """Sends questions and pairs the answers; frames that answer nothing go to `on_frame`."""

    def __init__(
        self, node: Node, stream: Stream, splitter: frames.Splitter, hello: frames.Message, noise: str
    ) -> None:
        self.node = node
        self.hello = hello
        self.noise = noise
        self.on_frame: OnFrame = lambda _message: None
        self.lost: WireError | None = None
        self._stream = stream
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[frames.Message]] = {}
        self._splitter = splitter
        self._closing: asyncio.Task[Ending] | None = None
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
            await _patiently(answer, within)
            reply = answer.result()
        except (TimeoutError, asyncio.InvalidStateError):
            raise Unreachable(Reason.SILENT, f"{self.node.name} did not answer within {within:g} s") from None
        finally:
            del self._waiting[number]
        if "error" in reply:
            raise AskError(f"{self.node.name}: {_said(reply['error'])}")
        return reply

    def tell(self, op: str, **fields: Any) -> None:
        """Sends without waiting for an answer."""
        if self.lost is None:
            self._stream.write(frames.pack({"op": op, **fields}))

    @property
    def ending(self) -> Ending:
        return self._stream.ending

    async def wait_gone(self) -> None:
        await self._gone.wait()

    async def close(self) -> Ending:
        """Ends the stream and what carried it; safe to call again, and from several places."""
        if self._closing is None:
            if self._reading is not None:
                self._reading.cancel()
            self._fail(Unreachable(Reason.LOST, f"the link to {self.node.name} is closed"))
            self._closing = asyncio.create_task(self._stream.close())
        return await asyncio.shield(self._closing)

    async def _read(self, bodies: list[bytes]) -> None:
        lost: WireError = Unreachable(Reason.LOST, f"the connection to {self.node.name} ended")
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
            lost = Unreachable(Reason.LOST, f"the connection to {self.node.name} broke: {error}")
        finally:
            self._fail(lost)

    def _take(self, message: frames.Message) -> None:
        number = message.get("re")
        waiting = self._waiting.get(number) if isinstance(number, int) else None
        if waiting is None:
            self.on_frame(message)
        elif not waiting.done():
            waiting.set_result(message)

    def _fail(self, error: WireError) -> None:
        if self.lost is None:
            self.lost = error
            self._gone.set()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(error)
                    # Who asked may be cancelled before it looks; that is no error of its own.
                    waiting.exception()


async def _patiently(answer: "asyncio.Future[frames.Message]", within: float) -> None:
    """Waits for the time given and for as long as we ourselves were held up in it: that is no silence of the node's.

    On a head that is busy or was stopped, the clock rings before the answers that lie there are read.
    """
    clock = asyncio.get_running_loop().time
    left, last = within, clock() + MOST_PATIENCE * within
    while not answer.done() and left > 0:
        due = clock() + left
        await asyncio.wait([answer], timeout=left)
        late = clock() - due
        left = min(late, last - clock()) if late > LATE else 0.0


async def open_link(node: Node, wire: Wire, seconds: float, on_phase: OnPhase) -> Link:
    """Dials, ships the agent and waits for its hello; raises Unreachable with the reason, leaving nothing behind."""
    stream = await wire.open(node, on_phase)
    try:
        async with asyncio.timeout(seconds):
            return await _greet(node, stream, on_phase)
    except TimeoutError:
        raise _too_slow(node, await stream.close(hurry=True), seconds) from None
    except frames.FrameError as error:
        await stream.close(hurry=True)
        raise Unreachable(Reason.GARBAGE, f"{node.name} sent {error}") from None
    except BaseException:
        # Cancelled or failed: the program that carried the stream must not outlive it.
        with suppress(asyncio.CancelledError):
            await asyncio.shield(asyncio.create_task(stream.close(hurry=True)))
        raise


async def _greet(node: Node, stream: Stream, on_phase: OnPhase) -> Link:
    start = bootstrap.bootstrap(SILENCE_SECONDS)
    # Not drained: a far end that prints without end and reads nothing is told by what it prints.
    stream.write(start.stdin)
    noise, rest = await _skip_noise(node, stream, start.marker)
    splitter = frames.Splitter()
    bodies = splitter.feed(rest)
    while not bodies:
        data = await stream.read(CHUNK)
        if not data:
            raise Unreachable(Reason.LOST, f"{node.name}: the agent ended before it said hello")
        bodies = splitter.feed(data)
    hello = frames.unpack(bodies[0])
    if hello.get("hello") != frames.VERSION:
        said = f"{node.name} speaks version {_said(hello.get('hello'))} of the protocol, not {frames.VERSION}"
        raise Unreachable(Reason.WRONG_VERSION, said)
    on_phase("agent")
    link = Link(node, stream, splitter, hello, _printable(noise))
    link.begin(bodies[1:])
    return link


async def _skip_noise(node: Node, stream: Stream, marker: bytes) -> tuple[bytes, bytes]:
    """What was printed before the marker, and what came behind it."""
    seen = bytearray()
    while True:
        data = await stream.read(CHUNK)
        if not data:
            reason, said = sshlog.reason_of(await stream.close())
            raise Unreachable(reason, f"{node.name}: {visible(said, SAID)}", detail=_printable(seen))
        # Only where it may be new: whoever sends byte by byte must not cost us the square of it.
        searched = max(0, len(seen) - len(marker))
        seen += data
        found = seen.find(marker, searched)
        if found >= 0:
            return bytes(seen[:found]), bytes(seen[found + len(marker) :])
        if len(seen) > NOISE_LIMIT:
            said = f"{node.name} printed {len(seen)} bytes and no agent spoke"
            raise Unreachable(Reason.SHELL_NOISE, said, detail=_printable(seen))


def _too_slow(node: Node, ending: Ending, seconds: float) -> Unreachable:
    """Names the phase at which the time ran out: each has another cause."""
    for phase, what in (
        ("logged-in", "login worked, but no agent spoke"),
        ("keys", "the key exchange worked, but the login did not end"),
        ("greeted", "the key exchange did not end"),
        ("connected", "the port is open, but no ssh server greeted"),
    ):
        if phase in ending.phases:
            return Unreachable(Reason.SILENT, f"{node.name}: {what} within {seconds:g} s", detail=phase)
    return Unreachable(Reason.TIMED_OUT, f"{node.name}: no connection within {seconds:g} s")


def _said(given: object) -> str:
    """What a far end put into a frame, fit for a screen; what is no text or number is only named."""
    return visible(str(given), SAID) if isinstance(given, str | int | float) else f"of type {type(given).__name__}"


def _printable(raw: bytes | bytearray) -> str:
    """The beginning of what a far end printed, fit for a screen: no control characters, no wall of text."""
    text = raw[:2000].decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()[:200]
