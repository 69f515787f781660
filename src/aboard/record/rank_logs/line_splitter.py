"""From pieces of a stream, cut anywhere, to blocks of whole lines."""

from collections.abc import Iterator

from aboard.record.rank_logs.log_index import CONTINUES, CUT

LINE_LIMIT = 65_536
# What a reader of thousands of ranks holds of each at once.
BLOCK = 16_384
# A prompt, a progress bar: what stays unfinished is shown after this, and while it grows, after the other.
SILENCE = 0.5
GROWING = 5.0

# Bytes that end with a newline, when their first one was printed, flags of the index.
Block = tuple[bytes, float, int]


class LineSplitter:
    """One stream of one rank. Lines come out whole; the unfinished one is held, up to the limit."""

    __slots__ = ("_began", "_continues", "_fresh", "_held", "_opened", "_silent_since", "held")

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._began = 0.0
        self._continues = 0
        self._fresh = False
        self._opened: float | None = None
        self._silent_since = 0.0
        self.held = 0

    def feed(self, data: bytes, at: float) -> list[Block]:
        """The lines that the piece ends, or that are whole in it; they happened when their first byte did."""
        # Nearly all pieces are whole lines.
        if not self.held and len(data) <= BLOCK and data.endswith(b"\n"):
            flags, self._continues = self._continues, 0
            return [(data, at, flags)]
        parts = (data[start : start + LINE_LIMIT] for start in range(0, len(data), LINE_LIMIT))
        return [block for part in parts for block in self._feed(part, at)]

    def finish(self) -> list[Block]:
        """What is held goes out as it is, with a newline that is ours; what follows is the rest of its line."""
        if not self.held:
            return []
        data, began, flags = b"".join(self._held), self._began, self._continues
        self._hold_nothing()
        self._continues = CONTINUES
        return [(data + b"\n", began, flags | CUT)]

    def tick(self, now: float) -> list[Block]:
        """Lets go of a line that nobody goes on writing, or that takes too long; `now` is a monotonic clock."""
        if not self.held:
            return []
        if self._opened is None:
            self._opened = now
        if self._fresh:
            self._fresh, self._silent_since = False, now
        if now - self._silent_since >= SILENCE or now - self._opened >= GROWING:
            return self.finish()
        return []

    def new_line(self) -> None:
        """What comes next is no rest of anything: what lay between was lost."""
        self._continues = 0

    def _feed(self, data: bytes, at: float) -> Iterator[Block]:
        start = 0
        if self.held:
            start = data.find(b"\n") + 1
            if self.held + (start or len(data)) > LINE_LIMIT:
                yield from self.finish()
                start = 0
            elif start:
                whole = b"".join((*self._held, data[:start]))
                began, flags = self._began, self._continues
                self._hold_nothing()
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
            self._hold(data[start:] if start else data, at)

    def _hold(self, data: bytes, at: float) -> None:
        if not self.held:
            self._began = at
        self._held.append(data)
        self.held += len(data)
        self._fresh = True

    def _hold_nothing(self) -> None:
        self._held = []
        self.held = 0
        self._opened = None
