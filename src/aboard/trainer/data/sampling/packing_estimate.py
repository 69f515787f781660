"""Estimates how full packed sequences will be, from the lengths of rows alone."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.length_statistics import LengthCounts
from aboard.trainer.data.sampling.best_fit_packing import pack_lengths

# Of more rows, a sample of this size is packed: the fill hardly depends on it.
MAX_PACKED_ROWS = 1_000_000
# Kinds of rows that are split if longer than a sequence; the others are truncated.
SPLITTABLE_KINDS = ("text", "tokens")


@dataclass(frozen=True, kw_only=True)
class PackingEstimate:
    """How rows fill sequences of a length; `kept` of all their tokens remain after truncation."""

    capacity: int
    bins: int
    kept: int
    tokens: int

    @property
    def full(self) -> float:
        return self.kept / max(1, self.bins * self.capacity)


def estimate_packing(lengths: Mapping[str, LengthCounts], capacity: int) -> PackingEstimate:
    """Packs by kind of row as preparation does: text continues in the next sequence, conversations are truncated."""
    sizes: Counter[int] = Counter()
    for kind, each in lengths.items():
        for length, count in each.counts.items():
            for size, times in _split_length(length, capacity, goes_on=kind in SPLITTABLE_KINDS):
                sizes[size] += count * times
    kept_tokens = sum(size * count for size, count in sizes.items())
    part = min(1.0, MAX_PACKED_ROWS / max(1, sizes.total()))
    counts = np.array([max(1, round(count * part)) for count in sizes.values()], np.int64)
    sampled = np.repeat(np.array(list(sizes), np.int64), counts)
    bins = int(pack_lengths(sampled, capacity).max()) + 1 if len(sampled) else 0
    scale = kept_tokens / max(1, int(sampled.sum()))
    tokens = sum(length * count for each in lengths.values() for length, count in each.counts.items())
    return PackingEstimate(capacity=capacity, bins=round(bins * scale), kept=kept_tokens, tokens=tokens)


def _split_length(length: int, capacity: int, *, goes_on: bool) -> list[tuple[int, int]]:
    """Sizes and their counts; a single token predicts nothing, and is left out."""
    if not goes_on:
        return [(min(length, capacity), 1)] if length > 1 else []
    times, rest = divmod(length, capacity)
    return [(capacity, times)] * bool(times) + [(rest, 1)] * (rest > 1)
