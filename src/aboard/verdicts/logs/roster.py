"""Who is who in a log: which address, process and rank belong to which node, as its lines happen to tell."""

import re
from dataclasses import field

from aboard.lazy import dataclass
from aboard.verdicts.logs.said import Said
from aboard.verdicts.nccl import NcclLine, NcclLog

_MOST = 200_000
# A log of one node or one rank mostly says so in its name: gpu07.log, rank_3.txt, nccl.gpu07.4711.
_FILE_RANK = re.compile(r"(?:^|[._-])rank[._-]?(\d+)(?=[._-]|$)")
_FILE_NODE = re.compile(r"(?:^|[._-])((?:gpu|node|host|worker|compute|cn|dgx|n)[A-Za-z]*-?\d+)(?=[._-]|$)")


@dataclass(kw_only=True)
class Roster:
    """Learns from lines; bounded."""

    by_address: dict[str, str] = field(default_factory=dict)
    by_pid: dict[int, str] = field(default_factory=dict)
    by_rank: dict[int, str] = field(default_factory=dict)
    rank_of_pid: dict[tuple[str, int], int] = field(default_factory=dict)

    def nccl(self, line: NcclLine, log: NcclLog) -> None:
        """NCCL's prefix has the host and the process, and its lines the address and the rank."""
        known = log.ranks.get((line.host, line.pid))
        if known is None or len(self.by_pid) >= _MOST:
            return
        self.by_pid[line.pid] = line.host
        if known.address:
            self.by_address[known.address] = line.host
        if known.rank is not None:
            self.by_rank[known.rank] = line.host
            self.rank_of_pid[line.host, line.pid] = known.rank

    def told(self, said: Said) -> None:
        """A prefix that names both ties them together."""
        if said.node and said.rank is not None and len(self.by_rank) < _MOST:
            self.by_rank.setdefault(said.rank, said.node)

    def node(self, name: str) -> str:
        """The node's own name for an address, where a line told it."""
        return self.by_address.get(name, name)


def of_file(name: str) -> tuple[str, int | None]:
    """The node and the rank that a file's name tells of."""
    base = name.rpartition("/")[2]
    node, rank = _FILE_NODE.search(base), _FILE_RANK.search(base)
    return (node[1] if node else ""), (int(rank[1]) if rank else None)
