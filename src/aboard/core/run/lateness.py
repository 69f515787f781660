"""How late each rank is to collectives, in windows of about ten seconds."""

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from itertools import pairwise
from typing import NamedTuple

from aboard.lazy_dataclass import dataclass

WINDOW_SECONDS = 10.0
# Why a rank's lateness was not measured.
UNMEASURED = {
    "disabled": "the flight recorder is disabled by TORCH_FR_BUFFER_SIZE=0",
    "old-torch": "this version of torch has no flight recorder that can be read",
    "idle": "it issued no collective",
    "unmatched": "no other rank's record has the same collectives",
}

Ranges = tuple[tuple[int, int], ...]


class RankLateness(NamedTuple):
    """The seconds that the typical other rank waited for this one at a collective, and the group of the worst one."""

    mean: float
    worst: float
    group: str


@dataclass(frozen=True, kw_only=True)
class LatenessWindow:
    """The lateness of all ranks in the `seconds` before `at`.

    Ranks of `measured` that are not in `late` were on time, to within the `uncertainty` of the nodes' clocks.
    `unmeasured` has a reason of UNMEASURED; ranks in neither reported nothing. `count` collectives were compared in the
    busiest group, in which there is one every `interval` seconds.
    """

    at: float
    seconds: float = WINDOW_SECONDS
    generation: int = 1
    count: int = 0
    interval: float = 0.0
    uncertainty: float = 0.0
    late: Mapping[int, RankLateness] = field(default_factory=dict)
    measured: Ranges = ()
    unmeasured: Mapping[str, Ranges] = field(default_factory=dict)


def fold_ranks(ranks: Iterable[int]) -> Ranges:
    """The ranks as ranges (first, last)."""
    ordered = sorted(set(ranks))
    cuts = [0, *(place for place, (rank, after) in enumerate(pairwise(ordered), 1) if after > rank + 1), len(ordered)]
    return tuple((ordered[start], ordered[end - 1]) for start, end in pairwise(cuts)) if ordered else ()


def expand_ranges(ranges: Ranges) -> set[int]:
    return {rank for first, last in ranges for rank in range(first, last + 1)}


def merge_windows(first: LatenessWindow, second: LatenessWindow) -> LatenessWindow:
    """One window over the time of both, of the same generation; a rank unmeasured in one counts by the other."""
    count = first.count + second.count
    measured = expand_ranges(first.measured) | expand_ranges(second.measured)
    reasons = {**first.unmeasured, **second.unmeasured}
    unmeasured = {
        reason: expand_ranges(first.unmeasured.get(reason, ())) | expand_ranges(second.unmeasured.get(reason, ()))
        for reason in reasons
    }
    return replace(
        second,
        seconds=first.seconds + second.seconds,
        count=count,
        interval=(first.interval * first.count + second.interval * second.count) / max(1, count),
        uncertainty=max(first.uncertainty, second.uncertainty),
        late={rank: _merge_rank(rank, first, second) for rank in {*first.late, *second.late}},
        measured=fold_ranks(measured),
        unmeasured={reason: ranges for reason, ranks in unmeasured.items() if (ranges := fold_ranks(ranks - measured))},
    )


_ON_TIME = RankLateness(mean=0.0, worst=0.0, group="")


def _merge_rank(rank: int, first: LatenessWindow, second: LatenessWindow) -> RankLateness:
    one, other = first.late.get(rank, _ON_TIME), second.late.get(rank, _ON_TIME)
    mean = (one.mean * first.count + other.mean * second.count) / max(1, first.count + second.count)
    return max(one, other, key=lambda each: each.worst)._replace(mean=mean)
