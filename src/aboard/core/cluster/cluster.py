"""A cluster: the nodes of a run, in the order that ranks will be numbered."""

from collections.abc import Iterator

from aboard.core.cluster.node import Node
from aboard.core.monitoring.notify_settings import NotifySettings
from aboard.core.run.recovery.recovery_request import RecoveryRequest
from aboard.lazy_dataclass import dataclass

# `Cluster.source` when the user named no node.
THIS_MACHINE = "this machine"
# `Cluster.source` when the user named the nodes as arguments.
COMMAND_LINE = "the command line"
# How `Cluster.source` begins when the Slurm job gave the nodes; its id follows.
SLURM_JOB = "Slurm job"


@dataclass(frozen=True, kw_only=True)
class PlannedWrites:
    """`path` is a directory on every node; its disk needs `size` free bytes.

    On a disk that the nodes share, `size` is the total that they write; otherwise what one node writes.
    """

    path: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The nodes of a run. `source` says where they were read, for messages; `writes` is None if unknown.

    `recovery` and `notify` are what the same file asks for; its metrics go to the directory `textfile`.
    """

    nodes: tuple[Node, ...]
    source: str = ""
    writes: PlannedWrites | None = None
    recovery: RecoveryRequest = RecoveryRequest()
    notify: NotifySettings = NotifySettings()
    textfile: str = ""

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)
