"""Reading sources for the gate: every chunk is looked at once, on all cores where that pays."""

import os
from collections.abc import Callable, Sequence

from aboard.data.gate.tally import Item, Tally
from aboard.data.gate.terms import Terms
from aboard.data.intake.chunks import Chunk
from aboard.data.intake.formats import Format
from aboard.data.workshop.crew import crew
from aboard.data.workshop.look import Looked, LookOrder, look_at
from aboard.data.workshop.unit import Encode
from aboard.data.workshop.worker import Answer, Order, Told
from aboard.lazy import dataclass

# Below this a process has read it all before others have started.
ALONE = 16 << 20
# Rows to be shown come from the first chunks of a source.
_SHOWN_FROM = 16


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far the reading is: bytes of all files, and rows so far."""

    done: int
    total: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A source before its rows are read."""

    path: str
    chunks: Sequence[Chunk]
    format: Format

    @property
    def size(self) -> int:
        return sum(chunk.size for chunk in self.chunks)


class Reading:
    """Looks at every chunk, on all cores where that pays, and keeps the first rows of each source to be shown."""

    def __init__(
        self, opened: Sequence[Opened], terms: Terms, on_progress: Callable[[Progress], None], *, show: int
    ) -> None:
        chunks = [(at, place, chunk) for at, source in enumerate(opened) for place, chunk in enumerate(source.chunks)]
        self._orders = [
            LookOrder(
                number=number, chunk=chunk, form=opened[at].format, terms=terms, show=show if place < _SHOWN_FROM else 0
            )
            for number, (at, place, chunk) in enumerate(chunks)
        ]
        self._source_of = [at for at, _, _ in chunks]
        self._total = sum(source.size for source in opened)
        self._show = show
        self._on_progress = on_progress
        self._done = self._rows = 0
        self._on_the_way: dict[int, Told] = {}
        self._looked: dict[int, Looked] = {}
        self._next = 0
        self._first: list[list[Item]] = [[] for _ in opened]
        self.tallies = [Tally() for _ in opened]

    def go(self, encode: Encode | None) -> None:
        """Whoever reads which chunk, and whichever is done first, what comes out is the same."""
        cores = min(len(os.sched_getaffinity(0)), len(self._orders))
        if cores < 2 or self._total < ALONE:  # noqa: PLR2004 - one is alone
            for order in self._orders:
                self._alone(order, encode)
            return
        left = iter(self._orders)
        with crew(cores, encode) as hands:
            hands.run(lambda: next(left, None), self._take)

    def first_rows(self) -> list[Item]:
        """Of each source."""
        return [item for items in self._first for item in items]

    def _alone(self, order: LookOrder, encode: Encode | None) -> None:
        read = [0, 0]

        def tell(rows: int, characters: int) -> None:
            read[:] = read[0] + rows, read[1] + characters
            self._take(order, Told(rows=read[0], tokens=read[1]))

        self._take(order, look_at(order, encode, tell))

    def _take(self, order: Order, answer: Answer) -> None:
        if not isinstance(order, LookOrder):
            return
        if isinstance(answer, Told):
            self._on_the_way[order.number] = answer
        elif isinstance(answer, Looked):
            self._on_the_way.pop(order.number, None)
            self._looked[order.number] = answer
            self._done += order.chunk.size
            self._rows += answer.tally.rows
            self._fold()
        # By their text: how many bytes of a chunk are read isn't told, and it is for the eye only.
        inside = sum(min(self._orders[number].chunk.size, told.tokens) for number, told in self._on_the_way.items())
        rows = self._rows + sum(told.rows for told in self._on_the_way.values())
        self._on_progress(Progress(done=self._done + inside, total=self._total, rows=rows))

    def _fold(self) -> None:
        """In the order of the chunks: of two equal rows the later one is told to be there already."""
        while (looked := self._looked.pop(self._next, None)) is not None:
            at = self._source_of[self._next]
            self.tallies[at] += looked.tally
            self._first[at] += looked.shown[: self._show - len(self._first[at])]
            self._next += 1
