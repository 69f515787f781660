"""Merges the flight records of all ranks: the collective of each, and which are missing, mismatched or late.

Torch's reader (torchfrtrace) crashes on Gloo's records and needs a dump of every rank; this one works with any part.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from aboard.core.evidence.node_snapshot import CollectiveRecord, ProcessGroupRecord
from aboard.lazy_dataclass import dataclass

# With fewer ranks than this, a collective doesn't show who is late.
_LEAST_RANKS = 2
_LEAST_COLLECTIVES = 5
# One in this many may be an outlier.
_RARE = 10
# A rank's wait is long from this share of its longest typical one.
_LONG_WAIT = 0.5


@dataclass(frozen=True, kw_only=True)
class GroupProgress:
    """One process group across its ranks. `waiting` are inside a collective, `behind` never reached it.

    `odd` wait under the same number in another collective than most; `number` is the one that all wait for.
    """

    group: str
    what: str
    number: int
    waiting: Mapping[int, CollectiveRecord]
    behind: Mapping[int, int]
    odd: Mapping[int, CollectiveRecord]
    usual: CollectiveRecord | None
    since: float | None


@dataclass(frozen=True, kw_only=True)
class Lateness:
    """By how many seconds each rank arrives after the first one, over `count` collectives.

    `late` and `seconds`, the time between two collectives, are typical values; `arrivals` has when ranks issued each.
    """

    group: str
    count: int
    seconds: float
    late: Mapping[int, float]
    arrivals: Mapping[int, Sequence[float]]


def list_group_progress(
    records: Mapping[int, Sequence[ProcessGroupRecord]], offsets: Mapping[int, float]
) -> list[GroupProgress]:
    """Groups with waiting ranks, the longest wait first. `offsets` are the clocks minus ours, by rank."""
    found = []
    for name in sorted({group.name for groups in records.values() for group in groups}):
        of_rank = {rank: group for rank, groups in records.items() for group in groups if group.name == name}
        standing = _build_group_progress(name, of_rank, offsets)
        if standing.waiting:
            found.append(standing)
    return sorted(found, key=lambda each: each.since or 0.0)


def _build_group_progress(
    name: str, of_rank: Mapping[int, ProcessGroupRecord], offsets: Mapping[int, float]
) -> GroupProgress:
    last_sequences = {rank: _find_last_sequence(group) for rank, group in of_rank.items()}
    number = max(last_sequences.values(), default=0)
    # The oldest open collective is where a rank is; later ones are queued behind it.
    open_now = {rank: entry for rank, group in of_rank.items() if (entry := _find_open_collective(group)) is not None}
    least = min((entry.seq for entry in open_now.values()), default=number)
    waiting = {rank: entry for rank, entry in open_now.items() if entry.seq == least}
    behind = {rank: seq for rank, seq in last_sequences.items() if seq < least}
    shapes = Counter(_get_shape(entry) for entry in waiting.values())
    usual = None
    odd = {}
    if shapes:
        most = shapes.most_common(1)[0][0]
        usual = next(entry for entry in waiting.values() if _get_shape(entry) == most)
        odd = {rank: entry for rank, entry in waiting.items() if _is_different(entry, usual)}
    starts = [entry.at - offsets.get(rank, 0.0) for rank, entry in waiting.items() if entry.at]
    what = next((group.what for group in of_rank.values() if group.what), "")
    return GroupProgress(
        group=name,
        what=what,
        number=least if waiting else number,
        waiting=waiting,
        behind=behind,
        odd=odd,
        usual=usual,
        since=min(starts, default=None),
    )


def measure_lateness(
    records: Mapping[int, Sequence[ProcessGroupRecord]], offsets: Mapping[int, float]
) -> Lateness | None:
    """From the group with the most collectives recorded by all of its ranks; None where there are few."""
    best: Lateness | None = None
    for name in {group.name for groups in records.values() for group in groups}:
        arrivals = {
            rank: {each.seq: each.at - offsets.get(rank, 0.0) for each in group.entries if each.at and not each.p2p}
            for rank, groups in records.items()
            for group in groups
            if group.name == name
        }
        if len(arrivals) < _LEAST_RANKS:
            continue
        shared = sorted(set.intersection(*(set(times) for times in arrivals.values())))
        if len(shared) < _LEAST_COLLECTIVES or (best is not None and len(shared) <= best.count):
            continue
        best = _compute_lateness(name, shared, arrivals)
    return best


def _compute_lateness(name: str, shared: Sequence[int], arrivals: Mapping[int, Mapping[int, float]]) -> Lateness:
    first = {seq: min(times[seq] for times in arrivals.values()) for seq in shared}
    late = {
        rank: _compute_trimmed_mean([times[seq] - first[seq] for seq in shared]) for rank, times in arrivals.items()
    }
    took = _compute_trimmed_mean([first[after] - first[before] for before, after in pairwise(shared)])
    compared = {rank: [times[seq] for seq in shared] for rank, times in arrivals.items()}
    return Lateness(group=name, count=len(shared), seconds=took, late=late, arrivals=compared)


def _compute_trimmed_mean(seconds: Sequence[float]) -> float:
    """No median: where a step has several collectives, a rank is late only to the first of them."""
    typical = _trim_outliers(seconds)
    return sum(typical) / max(1, len(typical))


def _trim_outliers(seconds: Sequence[float]) -> list[float]:
    """Without the largest values: one long wait, such as for a checkpoint, isn't typical."""
    return sorted(seconds)[: len(seconds) - max(1, len(seconds) // _RARE)]


def find_straggler(measured: Lateness) -> tuple[int, float] | None:
    """The rank that is regularly last, and the seconds by which it exceeds the typical rank."""
    rank = max(measured.late, key=lambda each: measured.late[each])
    extra = measured.late[rank] - median(late for other, late in measured.late.items() if other != rank)
    return (rank, extra) if extra > 0 else None


def summarize_long_waits(measured: Lateness, rank: int) -> tuple[int, float, float]:
    """At how many collectives the others waited long for this rank, for how many seconds, and the share of the time.

    Its short waits are left out: collectives from before it became slow, and the later ones of each step.
    """
    others = zip(*(times for each, times in measured.arrivals.items() if each != rank), strict=True)
    waits = [(median(rest), own) for rest, own in zip(others, measured.arrivals[rank], strict=True)]
    least = _LONG_WAIT * _trim_outliers([end - start for start, end in waits])[-1]
    long = [(start, end) for start, end in waits if end - start >= least]
    # Ranks issue the collectives of several buckets at once, so their waits overlap.
    waited, until = 0.0, waits[0][0]
    for start, end in long:
        waited += max(0.0, end - max(start, until))
        until = max(until, end)
    span = max(end for wait in waits for end in wait) - min(start for wait in waits for start in wait)
    return len(long), median(end - start for start, end in long), waited / max(span, 1e-6)


def _find_last_sequence(group: ProcessGroupRecord) -> int:
    own = [entry.seq for entry in group.entries if not entry.p2p]
    return max([group.enqueued, *own])


def _find_open_collective(group: ProcessGroupRecord) -> CollectiveRecord | None:
    left = [entry for entry in group.entries if not entry.over and not entry.p2p]
    return min(left, key=lambda entry: entry.seq, default=None)


def _get_shape(record: CollectiveRecord) -> tuple[str, str, tuple[str, ...]]:
    return record.op, record.sizes, record.types


def _is_different(record: CollectiveRecord, usual: CollectiveRecord) -> bool:
    # Sizes are recorded only for a rank's last few collectives.
    known = bool(record.sizes and usual.sizes)
    return record.op != usual.op or (known and _get_shape(record) != _get_shape(usual))
