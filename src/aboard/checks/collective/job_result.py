"""A job: one try of one group of nodes, who did well in it, and what the nodes say of each other."""

from collections.abc import Mapping
from dataclasses import field

from aboard.checks.collective.rank_report import GONE, PHASES, RankReport
from aboard.checks.network.mesh_result import Pair
from aboard.lazy_dataclass import dataclass

# A node makes half of the links of four nodes slow, so the median would be half slow: the upper quarter is not.
USUAL_AT = 0.75
SLOW_FACTOR = 4.0
# Of a CPU's sockets: what is faster than this is no bad cable, whatever the others do.
SLOW_MBIT = 1000.0
# Of what a rank says at its end.
MAX_ERROR_LENGTH = 300


@dataclass(frozen=True, kw_only=True)
class CollectiveJob:
    """`first` is the rank with which a node's own begin.

    `missing` says why a node gave no report, `lost` why it could not even be asked for one.
    """

    nodes: tuple[str, ...]
    first: Mapping[str, int]
    reports: Mapping[str, tuple[RankReport, ...]]
    missing: Mapping[str, str] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)
    # Whose an address is, to read what ranks say they wait for.
    owners: Mapping[str, str] = field(default_factory=dict)

    @property
    def well(self) -> bool:
        return not self.missing and not self.lost and all(report.well for report in self._all())

    @property
    def world(self) -> int:
        return len(self._all())

    @property
    def head(self) -> RankReport | None:
        """What rank 0 said: it has the table."""
        return next((report for report in self._all() if report.rank == 0), None)

    @property
    def dead(self) -> dict[str, str]:
        """The nodes without a rank, or with one that can't import torch, and why: nothing to search for."""
        return {
            **self.missing,
            **{
                node: report.error.visible(MAX_ERROR_LENGTH)
                for node, report in self._rankless()
                if not report.late or self._ready()
            },
        }

    @property
    def slow_to_load(self) -> dict[str, str]:
        """The nodes that were late with torch when nobody was ready: all are busy, and none of them is to blame."""
        return {
            node: report.error.visible(MAX_ERROR_LENGTH)
            for node, report in self._rankless()
            if report.late and not self._ready()
        }

    @property
    def told(self) -> set[Pair]:
        """Who waits for whom, or got wrong values of whom, as they say themselves."""
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
        """Who failed by itself, the one that came least far first."""
        own = [
            (node, report)
            for node, reports in self.reports.items()
            for report in reports
            if not report.well and not report.told and report.phase in PHASES
        ]
        return min(own, key=lambda each: PHASES.index(each[1].phase), default=None)

    @property
    def rates(self) -> dict[Pair, float]:
        """What each pair of nodes exchanged, in Mbit/s; of what its two ends say the better."""
        found: dict[Pair, float] = {}
        for node, reports in self.reports.items():
            for report in reports:
                for rank, mbit in report.pairs.items():
                    one, other = sorted((node, self.node(rank)))
                    found[one, other] = max(mbit, found.get((one, other), 0.0))
        return found

    def node(self, rank: int) -> str:
        """Whose a rank is."""
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
    """What a link carries here when nothing is wrong with it."""
    return sorted(rates.values())[int(len(rates) * USUAL_AT)] if rates else 0.0


def find_slow_pairs(rates: Mapping[Pair, float], *, sockets: bool) -> set[Pair]:
    """The links that carry far less than the others."""
    least = find_usual_rate(rates) / SLOW_FACTOR
    return {pair for pair, mbit in rates.items() if mbit < (min(least, SLOW_MBIT) if sockets else least)}
