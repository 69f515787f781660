"""The prepared sources of a training run, opened: their packed sequences and content."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from aboard.core.plan.training_settings import DataPart
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.sampling.packed_sequences import PackedSequence, PackedSequences
from aboard.trainer.data.sampling.source_mixing import Cursor, SequenceDraw, mix_sources
from aboard.trainer.data.store.token_shards import TokenShards


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Sources by name, and their weights unless they are mixed by size."""

    sources: Mapping[str, PackedSequences]
    weights: Mapping[str, float] | None

    @property
    def packed(self) -> bool:
        """Whether a sequence may contain several documents."""
        return any(bins.manifest.packing == "packed" for bins in self.sources.values())

    def __len__(self) -> int:
        return sum(map(len, self.sources.values()))

    def counts(self, draw: SequenceDraw) -> tuple[int, int]:
        return self.sources[draw.source].counts(draw.bin)

    def read(self, draw: SequenceDraw) -> PackedSequence:
        return self.sources[draw.source].bin(draw.bin)

    def where(self, draw: SequenceDraw) -> str:
        """File and line of the sequence's first document."""
        bins = self.sources[draw.source]
        return str(bins.shards.document(bins.bin(draw.bin).documents[0]).location)

    def shuffle_sources(self, seed: int) -> Cursor:
        """The order of training."""
        return mix_sources({name: len(bins) for name, bins in self.sources.items()}, seed, self.weights)

    def in_order(self) -> Cursor:
        """The order of evaluation: as stored."""
        names, ends = tuple(self.sources), tuple(accumulate(map(len, self.sources.values())))

        def at(index: int) -> SequenceDraw:
            source = bisect_right(ends, index)
            return SequenceDraw(source=names[source], bin=index - (ends[source - 1] if source else 0), epoch=0)

        return at


def open_training_data(parts: Sequence[DataPart]) -> TrainingData:
    sources = {part.name: PackedSequences(Path(part.bins), TokenShards(Path(part.shards))) for part in parts}
    weights = {part.name: part.weight for part in parts if part.weight is not None}
    return TrainingData(sources=sources, weights=weights or None)
