"""Compares when ranks came to the same collective, as their flight recorders have it, and sums it up in windows."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import field
from statistics import median

from aboard.core.run.lateness import LatenessWindow, RankLateness, fold_ranks
from aboard.lazy_dataclass import dataclass

# Collectives of one group that wait for the report of a rank; a rank that never reports must not keep them for ever.
_MOST_WAITING = 4096
# Groups of one run: a hostile rank could invent any number.
_MOST_GROUPS = 4096
_LEAST_RANKS = 2
# In windows.
_PATIENCE = 6


@dataclass(frozen=True, kw_only=True)
class GroupArrivals:
    """When one rank issued collectives of a group, in the head's time, by sequence number; `last` is its last one."""

    key: str
    name: str
    times: Mapping[int, float]
    last: int


@dataclass(kw_only=True)
class _Group:
    name: str
    last: dict[int, int] = field(default_factory=dict)
    waiting: dict[int, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    # The collectives that were compared in the last window, and when the first rank came to each.
    settled: list[tuple[int, float]] = field(default_factory=list)


class LatenessMeter:
    """Takes the reports of one generation; `close_window` compares what all ranks of a group have passed."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._nodes: dict[int, str] = {}
        # By how much a node's clock may differ from what is assumed.
        self._errors: dict[str, float] = {}
        # Of the ranks that have reported in this window: why they may have no lateness.
        self._reasons: dict[int, str] = {}
        # In which window a rank reported last.
        self._heard: dict[int, int] = {}
        self._window = 0

    def take(self, rank: int, node: str, clock_error: float, report: tuple[GroupArrivals, ...] | str) -> None:
        """Takes a rank's new arrivals, or the reason why it has none."""
        self._nodes[rank], self._errors[node], self._heard[rank] = node, clock_error, self._window
        if isinstance(report, str):
            self._reasons.setdefault(rank, report)
            return
        self._reasons[rank] = "unmatched"
        for arrivals in report:
            if arrivals.key in self._groups or len(self._groups) < _MOST_GROUPS:
                group = self._groups.setdefault(arrivals.key, _Group(name=arrivals.name))
                group.last[rank] = max(arrivals.last, group.last.get(rank, 0))
                for seq, at in arrivals.times.items():
                    group.waiting[seq][rank] = at

    def close_window(self, at: float, seconds: float, generation: int) -> LatenessWindow | None:
        """The window that ends now; None if no rank has reported anything in it."""
        if not self._reasons:
            return None
        uncertainty = self._compute_uncertainty()
        late: dict[int, tuple[float, RankLateness]] = {}
        measured: set[int] = set()
        for group in self._groups.values():
            for rank, (total, worst, count) in self._settle(group, uncertainty).items():
                measured.add(rank)
                if total > late.get(rank, (0.0,))[0]:
                    late[rank] = total, RankLateness(mean=total / count, worst=worst, group=group.name)
        busiest = max(self._groups.values(), key=lambda group: len(group.settled), default=None)
        reasons = {rank: why for rank, why in self._reasons.items() if rank not in measured}
        self._reasons.clear()
        self._window += 1
        return LatenessWindow(
            at=at,
            seconds=seconds,
            generation=generation,
            count=len(busiest.settled) if busiest else 0,
            interval=_compute_interval(busiest.settled) if busiest else 0.0,
            uncertainty=max((uncertainty[rank] for rank in measured), default=0.0),
            late={rank: each for rank, (_total, each) in late.items()},
            measured=fold_ranks(measured),
            unmeasured={
                why: fold_ranks(rank for rank, reason in reasons.items() if reason == why)
                for why in sorted(set(reasons.values()))
            },
        )

    def _settle(self, group: _Group, uncertainty: Mapping[int, float]) -> dict[int, list[float]]:
        """By rank: the sum, the worst and the number of the waits for it, where every rank of the group has passed."""
        # One that is late reports; one that is dead or stopped does not, and is waited for no longer than this.
        last = [seq for rank, seq in group.last.items() if self._heard[rank] > self._window - _PATIENCE]
        passed = min(last, default=-1) if len(last) >= _LEAST_RANKS else -1
        if len(group.waiting) > _MOST_WAITING:
            passed = max(passed, sorted(group.waiting)[-_MOST_WAITING // 2])
        sums: dict[int, list[float]] = {}
        group.settled = []
        for seq in sorted(seq for seq in group.waiting if seq <= passed):
            times = group.waiting.pop(seq)
            if len(times) >= _LEAST_RANKS:
                group.settled.append((seq, min(times.values())))
                _add_waits(sums, times, uncertainty)
        return sums

    def _compute_uncertainty(self) -> dict[int, float]:
        """Of each rank's clock and the typical other one; ranks of one node share their clock."""
        typical = median(self._errors.values())
        alone = len(self._errors) < _LEAST_RANKS
        return {rank: 0.0 if alone else self._errors[node] + typical for rank, node in self._nodes.items()}


def _add_waits(sums: dict[int, list[float]], times: Mapping[int, float], uncertainty: Mapping[int, float]) -> None:
    """Adds by how much each rank came after the median of the others: the typical one waited for it so long."""
    ordered = sorted(times.items(), key=lambda pair: pair[1])
    count = len(ordered)
    for place, (rank, at) in enumerate(ordered):
        rank_sums = sums.setdefault(rank, [0.0, 0.0, 0])
        rank_sums[2] += 1
        # The first half is before the median.
        if 2 * place >= count - 1:
            middle = ((count - 2) // 2, (count - 1) // 2)
            wait = at - sum(ordered[other + (other >= place)][1] for other in middle) / 2
            if wait > uncertainty[rank]:
                rank_sums[0] += wait
                rank_sums[1] = max(rank_sums[1], wait)


def _compute_interval(settled: Sequence[tuple[int, float]]) -> float:
    if len(settled) < _LEAST_RANKS:
        return 0.0
    (first, began), (last, ended) = settled[0], settled[-1]
    return max(0.0, (ended - began) / (last - first))
