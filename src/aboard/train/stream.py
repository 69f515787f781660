"""The prepared sources of a training, opened: which bins there are, and what is in them."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from aboard.core.training import DataPart
from aboard.data.feed.bins import Bin, Bins
from aboard.data.feed.mix import Cursor, Draw, mix
from aboard.data.store.shards import TokenShards
from aboard.lazy import dataclass


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Sources by name, and their weights unless they are mixed by size."""

    sources: Mapping[str, Bins]
    weights: Mapping[str, float] | None

    @property
    def packed(self) -> bool:
        """Whether there may be several documents in a bin."""
        return any(bins.manifest.packing == "packed" for bins in self.sources.values())

    def __len__(self) -> int:
        return sum(map(len, self.sources.values()))

    def counts(self, draw: Draw) -> tuple[int, int]:
        return self.sources[draw.source].counts(draw.bin)

    def read(self, draw: Draw) -> Bin:
        return self.sources[draw.source].bin(draw.bin)

    def where(self, draw: Draw) -> str:
        """File and line of the bin's first document."""
        bins = self.sources[draw.source]
        return str(bins.shards.document(bins.bin(draw.bin).documents[0]).where)

    def shuffled(self, seed: int) -> Cursor:
        """The order of training."""
        return mix({name: len(bins) for name, bins in self.sources.items()}, seed, self.weights)

    def in_order(self) -> Cursor:
        """The order of evaluation: as they stand."""
        names, ends = tuple(self.sources), tuple(accumulate(map(len, self.sources.values())))

        def at(index: int) -> Draw:
            source = bisect_right(ends, index)
            return Draw(source=names[source], bin=index - (ends[source - 1] if source else 0), epoch=0)

        return at


def opened(parts: Sequence[DataPart]) -> Stream:
    sources = {part.name: Bins(Path(part.bins), TokenShards(Path(part.shards))) for part in parts}
    weights = {part.name: part.weight for part in parts if part.weight is not None}
    return Stream(sources=sources, weights=weights or None)
