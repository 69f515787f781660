"""Length counts of rows: exact, addable in any order, with percentiles and a histogram."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import field
from itertools import accumulate

from aboard.lazy_dataclass import dataclass

# Above this, lengths are rounded to about 1 %, so that the number of different lengths stays small.
EXACT_BELOW = 1 << 15
_PRECISION_BITS = 7


@dataclass(frozen=True, kw_only=True)
class LengthCounts:
    """How many rows have which length, in any unit; `total` and `longest` are exact."""

    counts: Counter[int] = field(default_factory=Counter)
    total: int = 0
    longest: int = 0

    def __add__(self, other: "LengthCounts") -> "LengthCounts":
        return LengthCounts(
            counts=self.counts + other.counts, total=self.total + other.total, longest=max(self.longest, other.longest)
        )

    @property
    def rows(self) -> int:
        return self.counts.total()

    @property
    def mean(self) -> float:
        return self.total / max(1, self.rows)

    def percentile(self, share: float) -> int:
        """The smallest length that this share of the rows doesn't exceed."""
        if not self.counts:
            return 0
        lengths = sorted(self.counts)
        below = list(accumulate(self.counts[length] for length in lengths))
        place = min(bisect_left(below, share * below[-1]), len(lengths) - 1)
        return lengths[place] if lengths[place] < EXACT_BELOW else min(lengths[place], self.longest)


def count_lengths(lengths: Iterable[int]) -> LengthCounts:
    every = list(lengths)
    return LengthCounts(counts=Counter(map(_round_length, every)), total=sum(every), longest=max(every, default=0))


def _round_length(length: int) -> int:
    """Rounds up to the precision for this magnitude."""
    if length < EXACT_BELOW:
        return length
    grain = 1 << (length.bit_length() - _PRECISION_BITS)
    return -(-length // grain) * grain


@dataclass(frozen=True, kw_only=True)
class HistogramBar:
    """Rows with `low` <= length <= `high`."""

    low: int
    high: int
    rows: int


def build_bars(lengths: LengthCounts, most: int) -> list[HistogramBar]:
    """At most `most` bars with round bounds, each about as much wider as the previous one is long."""
    if not lengths.counts:
        return []
    low, high = min(lengths.counts), max(lengths.counts)
    for steps in _BARS_PER_DOUBLING:
        ends = _choose_bar_ends(steps, low, high)
        if len(ends) <= most:
            break
    counts = [0] * len(ends)
    for length, count in lengths.counts.items():
        counts[bisect_left(ends, length)] += count
    lows = [low, *(end + 1 for end in ends[:-1])]
    return [HistogramBar(low=a, high=b, rows=n) for a, b, n in zip(lows, ends, counts, strict=True)]


# Bounds within each doubling; token lengths are usually powers of two.
_BARS_PER_DOUBLING = (4, 2, 1)


def _choose_bar_ends(steps: int, low: int, high: int) -> list[int]:
    ends: list[int] = []
    power = 1
    while not ends or ends[-1] < high:
        for step in range(1, steps + 1):
            end = power + power * step // steps
            if end >= low and (not ends or end > ends[-1]) and (not ends or ends[-1] < high):
                ends.append(end)
        power *= 2
    return ends
