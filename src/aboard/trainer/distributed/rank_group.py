"""The ranks that share a checkpoint folder: which of them see the same disk, and collective work on it."""

import socket
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import Any

from aboard.lazy_dataclass import dataclass
from aboard.trainer.checkpoint.checkpoint_failures import pack_failure, raise_first_failure
from aboard.trainer.distributed.json_exchange import RankExchange
from aboard.trainer.distributed.rank_context import RankContext

# Of the files by which ranks find out whether they share a disk: the same path may be another disk on another node.
PROBE_PREFIX = ".seen-"


@dataclass(frozen=True, kw_only=True)
class SharedDisks:
    """For each rank its node, and the lowest rank that sees the same folder: the leader of that disk."""

    nodes: tuple[str, ...]
    leaders: tuple[int, ...]

    def of(self, rank: int) -> frozenset[int]:
        """All ranks on the same disk."""
        return frozenset(each for each, leader in enumerate(self.leaders) if leader == self.leaders[rank])

    @property
    def count(self) -> int:
        return len(set(self.leaders))


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckpointRanks:
    """This rank and the others at the folder; the lowest rank of each disk is its leader."""

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

    def run_collectively(self, act: Callable[[], dict[str, Any] | None]) -> list[dict[str, Any]]:
        """Runs `act` on all ranks and returns the results of all; if one fails, all raise the same error."""
        try:
            report = act() or {}
        except Exception as error:  # noqa: BLE001 - the others must get any error, or they wait forever
            report = {"failed": pack_failure(error, rank=self.rank, node=self.node, folder=self.folder)}
        reports = self.exchange.gather(report)
        raise_first_failure(reports)
        return reports


def find_shared_disks(folder: Path, context: RankContext, exchange: RankExchange) -> SharedDisks:
    """Each node's first rank creates a file with a random name; the ranks that see it share its disk."""
    node = socket.gethostname()
    mark = folder / f"{PROBE_PREFIX}{token_hex(8)}" if context.local_rank == 0 else None
    report: dict[str, Any] = {"node": node, "mark": mark and mark.name, "failed": None}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if mark:
            mark.touch(exist_ok=False)
    except OSError as error:
        report["failed"] = pack_failure(error, rank=context.rank, node=node, folder=folder)
    try:
        reports = exchange.gather(report)
        raise_first_failure(reports)
        marks = {rank: each["mark"] for rank, each in enumerate(reports) if each["mark"]}
        leader = min((rank for rank, name in marks.items() if (folder / name).exists()), default=context.rank)
        leaders = exchange.gather(leader)
    finally:
        if mark:
            mark.unlink(missing_ok=True)
    return SharedDisks(nodes=tuple(each["node"] for each in reports), leaders=tuple(leaders))
