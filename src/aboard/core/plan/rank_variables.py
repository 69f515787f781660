"""The environment of a rank: torchrun's variables, DeepSpeed's, and the network settings from preflight."""

from collections.abc import Mapping, Sequence

from aboard.core.cluster.node import Node
from aboard.core.cluster.node_resources import NodeResources
from aboard.core.plan.plan import MasterAddress
from aboard.lazy_dataclass import dataclass

# Set in a process that is no rank yet: the trainer and the beacon wait.
STANDBY = "ABOARD_STANDBY"
INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@dataclass(frozen=True, kw_only=True)
class RankLayout:
    """A rank's position in the world and on its node, and its node's position (`group` of `groups`)."""

    rank: int
    world: int
    local: int
    local_world: int
    group: int
    groups: int


def build_torchrun_env(layout: RankLayout, master: MasterAddress, run: str, *, restarts: int = 0) -> dict[str, str]:
    """The variables that torchrun (torch/distributed/elastic/agent/server/local_elastic_agent.py) and DeepSpeed set.

    The agent store is False: no torchrun agent hosts the store, so rank 0 must.
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
        "TORCHELASTIC_MAX_RESTARTS": str(restarts),
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        # DeepSpeed's own (deepspeed/launcher/launch.py).
        "LOCAL_SIZE": str(layout.local_world),
        "CROSS_RANK": str(layout.group),
        "CROSS_SIZE": str(layout.groups),
    }


def list_torchrun_variables() -> list[str]:
    """The names of those variables."""
    layout = RankLayout(rank=0, world=1, local=0, local_world=1, group=0, groups=1)
    return list(build_torchrun_env(layout, MasterAddress(node="", address=""), ""))


def build_task_env(layout: RankLayout) -> dict[str, str]:
    """The variables of a task of srun, from which programs without a launcher take their rank."""
    return {
        "SLURM_PROCID": str(layout.rank),
        "SLURM_LOCALID": str(layout.local),
        "SLURM_NODEID": str(layout.group),
        "SLURM_NTASKS": str(layout.world),
        "SLURM_NPROCS": str(layout.world),
        "SLURM_NTASKS_PER_NODE": str(layout.local_world),
    }


def build_node_env(node: Node, resources: NodeResources, layout: RankLayout, threads: int | None) -> dict[str, str]:
    """The node's own variables; the user's override all of them."""
    # torchrun sets the second one, too: a failing collective then terminates its process instead of hanging it.
    env = {"PYTHONUNBUFFERED": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    env |= {"OMP_NUM_THREADS": str(threads or _count_threads(resources, layout))}
    if layout.groups > 1 and resources.interface:
        env |= dict.fromkeys(INTERFACE_VARIABLES, resources.interface)
    if node.interpreter is not None and node.container is None:
        env |= node.interpreter.env
    if node.picked is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(_name_gpus(node.picked, resources.visible_gpus))
    if node.picked is not None or resources.gpu_cores:
        # Otherwise CUDA counts the fastest GPU first; slots and nvidia-smi count them by their place on the bus.
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return env


def list_overridden_names(env: Mapping[str, str]) -> list[str]:
    """Per-rank variables that the user's env would override with one value for all."""
    own = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK")
    return [name for name in own if name in env]


def _name_gpus(picked: Sequence[int], visible: Sequence[str]) -> list[str]:
    """Slots count from the first GPU that the ranks may use, which in a Slurm job need not be the node's first."""
    return [visible[slot] if slot < len(visible) else str(slot) for slot in picked]


def _count_threads(resources: NodeResources, layout: RankLayout) -> int:
    """The node's cores divided by its ranks; torchrun's default of 1 if the cores are unknown."""
    return max(1, (resources.cores or 1) // layout.local_world)
