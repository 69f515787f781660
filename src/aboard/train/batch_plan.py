"""Which bins a step takes, and which of them are this rank's: a pure function of the settled training and a cursor."""

from collections.abc import Callable, Iterator
from math import ceil

from aboard.data.sampling.source_mixing import Cursor, SequenceDraw
from aboard.lazy_dataclass import dataclass
from aboard.train.progress import TrainingProgress

# Tokens and supervised tokens of a bin, without reading them.
TokenCounter = Callable[[SequenceDraw], tuple[int, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedStep:
    """One step as this rank runs it: its micro-batches, of which some may be empty, and what all ranks divide by."""

    number: int
    micro: tuple[tuple[SequenceDraw, ...], ...]
    supervised: int
    after: TrainingProgress


@dataclass(frozen=True, kw_only=True)
class BatchPlanner:
    """The stream of bins is endless, and steps take `size` of it each; the last one takes what is left of `total`.

    Of a step's bins, rank r of W takes each W-th from the r-th on. All ranks run as many micro-batches as the one with
    the most bins needs, since each of them is a collective; who has no bins left for one runs an empty one.
    """

    cursor: Cursor
    counts: TokenCounter
    size: int
    rows: int
    total: int
    rank: int = 0
    world: int = 1

    def steps(self, progress: TrainingProgress) -> int:
        """How many there will be in all, seen from here."""
        return progress.step + ceil(max(0, self.total - progress.index) / self.size)

    def walk(self, progress: TrainingProgress) -> Iterator[PlannedStep]:
        """The steps from here on: a seek, at any index."""
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
