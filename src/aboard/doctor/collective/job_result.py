"""A job: one trial of one group of nodes, which of them succeeded, and which peers they reported."""

from collections.abc import Mapping
from dataclasses import field

from aboard.doctor.collective.rank_report import GONE, PHASES, RankReport
from aboard.doctor.network.mesh_result import Pair
from aboard.lazy_dataclass import dataclass

# A node makes half of the links of four nodes slow, so the median would be half slow: the upper quarter is not.
USUAL_AT = 0.75
SLOW_FACTOR = 4.0
# For sockets on CPUs: a faster link has no bad cable, whatever the others reach.
SLOW_MBIT = 1000.0
# Of a rank's last error.
MAX_ERROR_LENGTH = 300


@dataclass(frozen=True, kw_only=True)
class CollectiveJob:
    """`first` is the first rank of each node.

    `missing` says why a node gave no report, `lost` why it could not be queried.
    """

    nodes: tuple[str, ...]
    first: Mapping[str, int]
    reports: Mapping[str, tuple[RankReport, ...]]
    missing: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    # The node of each address, to resolve the peers that ranks report waiting for.
    owners: Mapping[str, str] = field(default_factory=dict)

    @property
    def well(self) -> bool:
        return not self.missing and not self.lost and all(report.well for report in self._all())

    @property
    def world(self) -> int:
        return len(self._all())

    @property
    def head(self) -> RankReport | None:
        """The report of rank 0, which has the table."""
        return next((report for report in self._all() if report.rank == 0), None)

    @property
    def dead(self) -> dict[str, str]:
        """The nodes without a rank, or with one that can't import torch, and why; these need no bisection."""
        return {
            **self.missing,
            **{
                node: report.error.visible(MAX_ERROR_LENGTH)
                for node, report in self._rankless()
                if not report.late or self._ready()
            },
        }

    @property
    def late(self) -> bool:
        """Whether a rank had not imported torch in time, which is no failure yet."""
        return any(report.late for _node, report in self._rankless())

    @property
    def slow_to_load(self) -> dict[str, str]:
        """The nodes that imported torch too slowly while no rank was ready: all are busy, and none is to blame."""
        return {
            node: report.error.visible(MAX_ERROR_LENGTH)
            for node, report in self._rankless()
            if report.late and not self._ready()
        }

    @property
    def reported_pairs(self) -> set[Pair]:
        """Pairs in which a node reported waiting for the other, or wrong values from it."""
        pairs: set[Pair] = set()
        for node, reports in self.reports.items():
            for report in reports:
                peers = [self.owners.get(address, "") for address in report.blocked]
                if report.partner is not None and report.phase == "pairs":
                    peers.append(self.node(report.partner))
                peers += [self.node(rank) for wrong in report.wrong for rank in wrong.sources]
                pairs |= {(node, peer) for peer in peers if peer in self.nodes and peer != node}
        return pairs

    @property
    def cause(self) -> tuple[str, RankReport] | None:
        """The node and rank that failed on its own, the one in the earliest phase."""
        own = [
            (node, report)
            for node, reports in self.reports.items()
            for report in reports
            if not report.well and not report.told and report.phase in PHASES
        ]
        return min(own, key=lambda each: PHASES.index(each[1].phase), default=None)

    @property
    def rates(self) -> dict[Pair, float]:
        """The rate of each pair of nodes in Mbit/s: the better of what its two ends report."""
        found: dict[Pair, float] = {}
        for node, reports in self.reports.items():
            for report in reports:
                for rank, mbit in report.pairs.items():
                    one, other = sorted((node, self.node(rank)))
                    found[one, other] = max(mbit, found.get((one, other), 0.0))
        return found

    def node(self, rank: int) -> str:
        """The node of a rank."""
        return max((first, name) for name, first in self.first.items() if first <= max(rank, 0))[1]

    def _rankless(self) -> list[tuple[str, RankReport]]:
        return [
            (node, report)
            for node, reports in self.reports.items()
            for report in reports
            if report.phase in ("import", GONE) and not report.told
        ]

    def _ready(self) -> bool:
        return any(report.phase in PHASES[PHASES.index("ready") :] for report in self._all())

    def _all(self) -> list[RankReport]:
        return [report for reports in self.reports.values() for report in reports]


def find_usual_rate(rates: Mapping[Pair, float]) -> float:
    """The rate of a healthy link here."""
    return sorted(rates.values())[int(len(rates) * USUAL_AT)] if rates else 0.0


def find_slow_pairs(rates: Mapping[Pair, float], *, sockets: bool) -> set[Pair]:
    """The links that are far slower than the others."""
    least = find_usual_rate(rates) / SLOW_FACTOR
    return {pair for pair, mbit in rates.items() if mbit < (min(least, SLOW_MBIT) if sockets else least)}
