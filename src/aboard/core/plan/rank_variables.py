"""The environment that a rank gets: torchrun's contract, DeepSpeed's, and what the check has seen of the network."""

from collections.abc import Mapping

from aboard.core.cluster.node import Node
from aboard.core.cluster.node_resources import NodeResources
from aboard.core.plan.plan import MasterAddress
from aboard.lazy_dataclass import dataclass

INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@dataclass(frozen=True, kw_only=True)
class RankLayout:
    """Where a rank stands among the others."""

    rank: int
    world: int
    local: int
    local_world: int
    group: int
    groups: int


def build_torchrun_env(layout: RankLayout, master: MasterAddress, run: str) -> dict[str, str]:
    """What torchrun gives a rank (torch/distributed/elastic/agent/server/local_elastic_agent.py), and DeepSpeed too.

    The agent store is False: there is no agent of torchrun's that would host it, so rank 0 must.
    """
    return {
        "RANK": str(layout.rank),
        "WORLD_SIZE": str(layout.world),
        "LOCAL_RANK": str(layout.local),
        "LOCAL_WORLD_SIZE": str(layout.local_world),
        "GROUP_RANK": str(layout.group),
        "GROUP_WORLD_SIZE": str(layout.groups),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(layout.rank),
        "ROLE_WORLD_SIZE": str(layout.world),
        "MASTER_ADDR": master.address,
        "MASTER_PORT": str(master.port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        # DeepSpeed's own (deepspeed/launcher/launch.py).
        "LOCAL_SIZE": str(layout.local_world),
        "CROSS_RANK": str(layout.group),
        "CROSS_SIZE": str(layout.groups),
    }


def build_node_env(node: Node, resources: NodeResources, layout: RankLayout, threads: int | None) -> dict[str, str]:
    """What is the node's own; all of it gives way to what the user says."""
    # The second as torchrun sets it: a collective that fails takes its process down instead of hanging it.
    env = {"PYTHONUNBUFFERED": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    env |= {"OMP_NUM_THREADS": str(threads or _count_threads(resources, layout))}
    if layout.groups > 1 and resources.interface:
        env |= dict.fromkeys(INTERFACE_VARIABLES, resources.interface)
    if node.interpreter is not None:
        env |= node.interpreter.env
    if node.picked is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, node.picked))
    return env


def list_overridden_names(env: Mapping[str, str]) -> list[str]:
    """Names of the contract that a user's env would break: each rank has its own value of these."""
    own = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK")
    return [name for name in own if name in env]


def _count_threads(resources: NodeResources, layout: RankLayout) -> int:
    """As many as there are cores for each rank; torchrun's 1 where the cores aren't known."""
    return max(1, (resources.cores or 1) // layout.local_world)
