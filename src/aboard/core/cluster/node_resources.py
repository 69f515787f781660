"""The resources that preflight found on a node."""

from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class NodeResources:
    """`accelerators` and `cores` are None where unknown.

    Peers reach the node at `address` through `interface`, which is "" where there is only one. `memory_nodes` lists
    the cores of each NUMA node, and `gpu_cores` those beside each GPU, in the order of their place on the bus; both are
    empty where ranks must not be bound. `visible_gpus` are CUDA's names of the GPUs that a Slurm job has on the node.
    """

    address: str
    interface: str = ""
    accelerators: int | None = None
    cores: int | None = None
    visible_gpus: tuple[str, ...] = ()
    memory_nodes: tuple[tuple[int, ...], ...] = ()
    gpu_cores: tuple[tuple[int, ...], ...] = ()
