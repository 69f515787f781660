"""Groups processes of external jobs by job, and finds which ranks are missing."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from aboard.core.cluster.head_machine import is_loopback
from aboard.core.evidence.external_process import ExternalJobProcess
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class ExternalRank:
    """A process and its node."""

    node: str
    process: ExternalJobProcess


@dataclass(frozen=True, kw_only=True)
class ExternalJob:
    """One job: its ranks by number; with `launching`, the launchers that have not started ranks yet."""

    size: int
    ranks: Mapping[int, ExternalRank]
    address: str = ""
    port: int = 0
    launching: bool = False

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.size) if rank not in self.ranks)

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.node for _rank, each in sorted(self.ranks.items())))

    @cached_property
    def began(self) -> float:
        return min(each.process.began for each in self.ranks.values())

    @property
    def what(self) -> str:
        return self._any.process.what

    @property
    def noun(self) -> str:
        return "launcher" if self.launching else "rank"

    def pids(self, node: str) -> dict[str, int]:
        """The ranks of a node by pid, as its snapshot names them."""
        return {str(each.process.pid): rank for rank, each in self.ranks.items() if each.node == node}

    def without(self, node: str, pids: Collection[int]) -> "ExternalJob":
        """The job without these processes of a node; their ranks become missing."""
        gone = {rank for rank, each in self.ranks.items() if each.node == node and each.process.pid in pids}
        return replace(self, ranks={rank: each for rank, each in self.ranks.items() if rank not in gone})

    @property
    def _any(self) -> ExternalRank:
        return self.ranks[min(self.ranks)]


def group_external_jobs(processes_by_node: Mapping[str, Sequence[ExternalJobProcess]]) -> list[ExternalJob]:
    """The newest job first. Processes with the same rendezvous are one job; of duplicate ranks the newest counts."""
    groups: dict[tuple[object, ...], list[ExternalRank]] = {}
    for node, processes in processes_by_node.items():
        for process in processes:
            groups.setdefault(_build_key(node, process), []).append(ExternalRank(node=node, process=process))
    return sorted((_build_job(ranks) for ranks in groups.values()), key=lambda world: -world.began)


def _build_key(node: str, process: ExternalJobProcess) -> tuple[object, ...]:
    """A loopback rendezvous groups processes of one node only; without an address, Slurm's job step decides."""
    own = node if is_loopback(process.address) else "" if process.address else process.job or node
    return process.address, process.port, process.world, bool(process.launcher), own


def _build_job(ranks: list[ExternalRank]) -> ExternalJob:
    first = ranks[0].process
    numbered = sorted((each for each in ranks if each.process.rank is not None), key=lambda each: each.process.began)
    chosen = {each.process.rank: each for each in numbered if each.process.rank is not None}
    free = iter(number for number in range(len(ranks)) if number not in chosen)
    for each in ranks:
        if each.process.rank is None:
            chosen[next(free)] = each
    size = max(first.world or 0, 1 + max(chosen))
    return ExternalJob(size=size, ranks=chosen, address=first.address, port=first.port, launching=bool(first.launcher))
