"""Splits chunks of a stream into blocks of whole lines."""

from collections.abc import Iterator

from aboard.record.rank_logs.log_index import CONTINUES, CUT

LINE_LIMIT = 65_536
# The block size: a reader of thousands of ranks holds one of each.
BLOCK = 16_384
# An unfinished line (a prompt, a progress bar) is emitted after this much silence, or at this age while it grows.
SILENCE = 0.5
GROWING = 5.0

# Bytes that end with a newline, the time of the first byte, flags of the index.
Block = tuple[bytes, float, int]


class LineSplitter:
    """One stream of one rank. Yields whole lines; buffers the unfinished one up to a limit."""

    __slots__ = ("_began", "_continues", "_fresh", "_held", "_opened", "_silent_since", "buffered")

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._began = 0.0
        self._continues = 0
        self._fresh = False
        self._opened: float | None = None
        self._silent_since = 0.0
        self.buffered = 0

    def feed(self, data: bytes, at: float) -> list[Block]:
        """The lines that the chunk completes; the time of a line is that of its first byte."""
        # Nearly all chunks are whole lines.
        if not self.buffered and len(data) <= BLOCK and data.endswith(b"\n"):
            flags, self._continues = self._continues, 0
            return [(data, at, flags)]
        parts = (data[start : start + LINE_LIMIT] for start in range(0, len(data), LINE_LIMIT))
        return [block for part in parts for block in self._feed(part, at)]

    def finish(self) -> list[Block]:
        """Emits the buffered part with an added newline; what follows continues that line."""
        if not self.buffered:
            return []
        data, began, flags = b"".join(self._held), self._began, self._continues
        self._clear_buffer()
        self._continues = CONTINUES
        return [(data + b"\n", began, flags | CUT)]

    def tick(self, now: float) -> list[Block]:
        """Emits a line that stopped growing or takes too long; `now` is a monotonic clock."""
        if not self.buffered:
            return []
        if self._opened is None:
            self._opened = now
        if self._fresh:
            self._fresh, self._silent_since = False, now
        if now - self._silent_since >= SILENCE or now - self._opened >= GROWING:
            return self.finish()
        return []

    def new_line(self) -> None:
        """After lost bytes: the next chunk starts a new line."""
        self._continues = 0

    def _feed(self, data: bytes, at: float) -> Iterator[Block]:
        start = 0
        if self.buffered:
            start = data.find(b"\n") + 1
            if self.buffered + (start or len(data)) > LINE_LIMIT:
                yield from self.finish()
                start = 0
            elif start:
                whole = b"".join((*self._held, data[:start]))
                began, flags = self._began, self._continues
                self._clear_buffer()
                self._continues = 0
                yield whole, began, flags
        last = data.rfind(b"\n") + 1
        while start < last:
            stop = last
            if last - start > BLOCK:
                stop = data.rfind(b"\n", start, start + BLOCK) + 1 or data.index(b"\n", start + BLOCK) + 1
            flags, self._continues = self._continues, 0
            yield data[start:stop], at, flags
            start = stop
        if start < len(data):
            self._buffer_part(data[start:] if start else data, at)

    def _buffer_part(self, data: bytes, at: float) -> None:
        if not self.buffered:
            self._began = at
        self._held.append(data)
        self.buffered += len(data)
        self._fresh = True

    def _clear_buffer(self) -> None:
        self._held = []
        self.buffered = 0
        self._opened = None
