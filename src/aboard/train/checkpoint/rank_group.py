"""The ranks at a checkpoint folder: each does its part, hears of the others', and a failure of one is everybody's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from aboard.lazy_dataclass import dataclass
from aboard.train.checkpoint.shared_disks import SharedDisks
from aboard.train.distributed.rank_exchange import RankExchange
from aboard.train.distributed.rank_failures import pack_failure, raise_first_failure


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckpointRanks:
    """This rank among them; the lowest rank of each disk leads there."""

    folder: Path
    rank: int
    disks: SharedDisks
    exchange: RankExchange

    @property
    def leads(self) -> bool:
        return self.disks.leaders[self.rank] == self.rank

    @property
    def node(self) -> str:
        return self.disks.nodes[self.rank]

    @property
    def mates(self) -> list[int]:
        """The ranks on the same disk."""
        return sorted(self.disks.of(self.rank))

    def run_collectively(self, act: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
        """What all ranks have to say after their part; raises the same on all where one of them failed."""
        try:
            report = act()
        except Exception as error:  # noqa: BLE001 - whatever it is, the others must hear of it, or they wait
            report = {"failed": pack_failure(error, rank=self.rank, node=self.node, folder=self.folder)}
        reports = self.exchange.all(report)
        raise_first_failure(reports)
        return reports
