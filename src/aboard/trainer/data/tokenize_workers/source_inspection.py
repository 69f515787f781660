"""Inspects sources for the data check: every chunk once, on all cores if that pays off."""

import os
from collections.abc import Callable, Sequence

from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.intake.chunks import Chunk
from aboard.trainer.data.intake.row_formats import RowFormat
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.row_statistics import CheckedRow, DataStatistics
from aboard.trainer.data.sampling.validation_split import SplitSide
from aboard.trainer.data.tokenize_workers.chunk_inspection import InspectedChunk, InspectOrder, inspect_chunk
from aboard.trainer.data.tokenize_workers.encoded_unit import RowEncoder
from aboard.trainer.data.tokenize_workers.worker_pool import start_workers
from aboard.trainer.data.tokenize_workers.worker_process import WorkerAnswer, WorkerOrder, WorkerProgress

# Below this size one process is done before others have started.
MIN_PARALLEL_BYTES = 16 << 20
# Rows to show come from the first chunks of a source.
_PREVIEW_CHUNKS = 16


@dataclass(frozen=True, kw_only=True)
class InspectionProgress:
    """Progress of the reading: bytes of all files, and rows so far."""

    done: int
    total: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class OpenedSource:
    """A source before its rows are read."""

    path: str
    chunks: Sequence[Chunk]
    format: RowFormat
    part: SplitSide | None = None

    @property
    def size(self) -> int:
        return sum(chunk.size for chunk in self.chunks)


class SourceInspection:
    """Inspects every chunk, on all cores if that pays off, and keeps the first rows of each source to show."""

    def __init__(
        self,
        opened: Sequence[OpenedSource],
        settings: EncodingSettings,
        on_progress: Callable[[InspectionProgress], None],
        *,
        show: int,
    ) -> None:
        chunks = [(at, place, chunk) for at, source in enumerate(opened) for place, chunk in enumerate(source.chunks)]
        self._orders = [
            InspectOrder(
                number=number,
                chunk=chunk,
                form=opened[at].format,
                part=opened[at].part,
                settings=settings,
                show=show if place < _PREVIEW_CHUNKS else 0,
            )
            for number, (at, place, chunk) in enumerate(chunks)
        ]
        self._source_of = [at for at, _, _ in chunks]
        self._total = sum(source.size for source in opened)
        self._show = show
        self._on_progress = on_progress
        self._done = self._rows = 0
        self._on_the_way: dict[int, WorkerProgress] = {}
        self._looked: dict[int, InspectedChunk] = {}
        self._next = 0
        self._first: list[list[CheckedRow]] = [[] for _ in opened]
        self.tallies = [DataStatistics() for _ in opened]

    def go(self, encoder: RowEncoder | None) -> None:
        """The result doesn't depend on which worker reads which chunk, nor on their order."""
        cores = min(len(os.sched_getaffinity(0)), len(self._orders))
        if cores < 2 or self._total < MIN_PARALLEL_BYTES:  # noqa: PLR2004 - one is alone
            for order in self._orders:
                self._inspect_in_process(order, encoder)
            return
        remaining = iter(self._orders)
        with start_workers(cores, encoder) as pool:
            pool.run(lambda: next(remaining, None), self._take)

    def first_rows(self) -> list[CheckedRow]:
        """The first rows of each source."""
        return [item for items in self._first for item in items]

    def _inspect_in_process(self, order: InspectOrder, encoder: RowEncoder | None) -> None:
        read = [0, 0]

        def on_progress(rows: int, characters: int) -> None:
            read[:] = read[0] + rows, read[1] + characters
            self._take(order, WorkerProgress(rows=read[0], tokens=read[1]))

        self._take(order, inspect_chunk(order, encoder, on_progress))

    def _take(self, order: WorkerOrder, answer: WorkerAnswer) -> None:
        if not isinstance(order, InspectOrder):
            return
        if isinstance(answer, WorkerProgress):
            self._on_the_way[order.number] = answer
        elif isinstance(answer, InspectedChunk):
            self._on_the_way.pop(order.number, None)
            self._looked[order.number] = answer
            self._done += order.chunk.size
            self._rows += answer.statistics.rows
            self._fold()
        # Estimated by text: workers don't report bytes, and this is for display only.
        inside = sum(
            min(self._orders[number].chunk.size, progress.tokens) for number, progress in self._on_the_way.items()
        )
        rows = self._rows + sum(progress.rows for progress in self._on_the_way.values())
        self._on_progress(InspectionProgress(done=self._done + inside, total=self._total, rows=rows))

    def _fold(self) -> None:
        """Adds up in chunk order: of two equal rows the later one is the duplicate."""
        while (inspected := self._looked.pop(self._next, None)) is not None:
            at = self._source_of[self._next]
            self.tallies[at] += inspected.statistics
            self._first[at] += inspected.first_rows[: self._show - len(self._first[at])]
            self._next += 1
