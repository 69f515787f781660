"""Prints ranks' lines where a script sends the output of its launcher, as by `torchrun … | tee train.log`."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses import TransportError
from aboard.transport.supervisor_messages import OutputChunk

# A line that is longer is printed in parts.
LONGEST_LINE = 16 * 1024
# What waits for a slow reader, and what is sent at a time.
MOST_WAITING, MOST_SENT = 1024 * 1024, 64 * 1024
RETRY_SECONDS = 0.1
# How long the last lines may take.
LAST_SECONDS = 10.0


class LauncherOutput:
    """What one launcher prints while its ranks run: whole lines. A slow reader misses the oldest, which are counted.

    `streams` are those that the script sends elsewhere than its own; `expect` gets all that is printed. `print_lines`
    returns False if the launcher has too much to print yet.
    """

    def __init__(
        self, streams: Sequence[str], print_lines: Callable[..., Awaitable[bool]], expect: Callable[[bytes], None]
    ) -> None:
        self._streams = streams
        self._print = print_lines
        self._expect = expect
        # By whose they are: of each stream, what has no end yet.
        self._partial: dict[tuple[str, str, str], bytes] = {}
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._size = 0
        self._dropped = 0
        self._printing: asyncio.Task[None] | None = None

    def take(self, chunk: OutputChunk) -> bool:
        """Prints what a rank or a task has written; False if this stream goes where the script's own goes."""
        if chunk.stream not in self._streams:
            return False
        source = chunk.node, chunk.child, chunk.stream
        self._dropped += chunk.dropped
        data = self._partial.pop(source, b"") + chunk.data
        # A progress bar's lines end with \r.
        whole = len(data) if chunk.end or len(data) > LONGEST_LINE else max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if data[whole:]:
            self._partial[source] = data[whole:]
        self._add(chunk.stream, data[:whole])
        return True

    async def finish(self, seconds: float = LAST_SECONDS) -> None:
        """Prints the rest, within this time, and what is missing."""
        for (_node, _child, stream), rest in self._partial.items():
            self._add(stream, rest)
        self._partial.clear()
        if self._printing is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._printing, seconds)
        if missing := self._dropped + self._size:
            why = f"aboard: {format_size(missing)} of the ranks' output is missing: it was not read fast enough\n"
            with suppress(TimeoutError, TransportError):
                async with asyncio.timeout(seconds):
                    await self._print(self._streams[0], why.encode(), last=True)

    def _add(self, stream: str, data: bytes) -> None:
        if not data:
            return
        self._waiting.append((stream, data))
        self._size += len(data)
        while self._size > MOST_WAITING:
            lost = len(self._waiting.popleft()[1])
            self._size -= lost
            self._dropped += lost
        if self._printing is None or self._printing.done():
            self._printing = asyncio.create_task(self._print_waiting())

    async def _print_waiting(self) -> None:
        while self._waiting:
            stream, data = self._waiting.popleft()
            while self._waiting and self._waiting[0][0] == stream and len(data) < MOST_SENT:
                data += self._waiting.popleft()[1]
            # It may come back as the script's output before we know that it was printed.
            self._expect(data)
            try:
                while not await self._print(stream, data):  # noqa: ASYNC110 - the node does not tell when there is room
                    await asyncio.sleep(RETRY_SECONDS)
            except TransportError:
                # Its node is lost, and so is the reader.
                self._waiting.clear()
                self._size = 0
                return
            self._size -= len(data)
