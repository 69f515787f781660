"""Plans the sequences of each step and this rank's share: a pure function of the settings and a cursor."""

from collections.abc import Callable, Iterator
from math import ceil

from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.sampling.source_mixing import Cursor, SequenceDraw
from aboard.trainer.progress import TrainingProgress

# Tokens and supervised tokens of a sequence, without reading it.
TokenCounter = Callable[[SequenceDraw], tuple[int, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedStep:
    """One step as this rank runs it: its micro-batches, some possibly empty, and the divisor of all ranks."""

    number: int
    micro: tuple[tuple[SequenceDraw, ...], ...]
    supervised: int
    after: TrainingProgress


@dataclass(frozen=True, kw_only=True)
class BatchPlanner:
    """The stream of sequences is endless; each step takes `size` of it, and the last one the rest of `total`.

    Of a step's sequences, rank r of W takes every W-th, starting at the r-th. All ranks run as many micro-batches as
    the rank with the most sequences needs, since each is a collective; a rank without sequences runs an empty one.
    """

    cursor: Cursor
    counts: TokenCounter
    size: int
    rows: int
    total: int
    rank: int = 0
    world: int = 1

    def steps(self, progress: TrainingProgress) -> int:
        """The total number of steps, seen from here."""
        return progress.step + ceil(max(0, self.total - progress.index) / self.size)

    def walk(self, progress: TrainingProgress) -> Iterator[PlannedStep]:
        """The steps from here on: a seek to any index."""
        while progress.index < self.total:
            planned = self.plan(progress)
            yield planned
            progress = planned.after

    def plan(self, progress: TrainingProgress) -> PlannedStep:
        draws = [self.cursor(index) for index in range(progress.index, min(progress.index + self.size, self.total))]
        counts = [self.counts(draw) for draw in draws]
        tokens, supervised = (sum(column) for column in zip(*counts, strict=True))
        own = draws[self.rank :: self.world]
        most = ceil(ceil(len(draws) / self.world) / self.rows)
        return PlannedStep(
            number=progress.step + 1,
            micro=tuple(tuple(own[at * self.rows : (at + 1) * self.rows]) for at in range(most)),
            supervised=supervised,
            after=progress.after(draws, bins=len(draws), tokens=tokens, supervised=supervised),
        )
