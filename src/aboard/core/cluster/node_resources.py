"""The resources of a node, as the check before a run found them."""

from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class NodeResources:
    """`accelerators` and `cores` are None where unknown.

    `address` is where peers reach the node; `interface` is the one they come in by, "" where there is no choice.
    `memory_nodes` are the cores of each NUMA node.
    """

    address: str
    interface: str = ""
    accelerators: int | None = None
    cores: int | None = None
    memory_nodes: tuple[tuple[int, ...], ...] = ()
