"""A cluster: the nodes of a run, in the order that ranks will be numbered."""

from collections.abc import Iterator

from aboard.core.cluster.node import Node
from aboard.lazy_dataclass import dataclass

# The source of a cluster for which nobody named a node.
THIS_MACHINE = "this machine"


@dataclass(frozen=True, kw_only=True)
class PlannedWrites:
    """`path` is a directory on every node; the disk behind it must have room for `size` bytes.

    Where the nodes share that disk, it is the size of all that they write; where each has its own, of what one writes.
    """

    path: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The nodes of this run. `source` is where they were read, for messages; `writes` is None when nobody said."""

    nodes: tuple[Node, ...]
    source: str = ""
    writes: PlannedWrites | None = None

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)
