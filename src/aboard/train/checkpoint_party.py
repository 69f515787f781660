"""The ranks at a checkpoint folder: each does its part, hears of the others', and a failure of one is everybody's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from aboard.lazy import dataclass
from aboard.train.checkpoint_disks import Disks
from aboard.train.checkpoint_exchange import Exchange
from aboard.train.checkpoint_failure import failure, raise_any


@dataclass(frozen=True, kw_only=True, eq=False)
class Party:
    """This rank among them; the lowest rank of each disk leads there."""

    folder: Path
    rank: int
    disks: Disks
    exchange: Exchange

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

    def together(self, act: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
        """What all ranks have to say after their part; raises the same on all where one of them failed."""
        try:
            said = act()
        except Exception as error:  # noqa: BLE001 - whatever it is, the others must hear of it, or they wait
            said = {"failed": failure(error, rank=self.rank, node=self.node, folder=self.folder)}
        told = self.exchange.all(said)
        raise_any(told)
        return told
