"""The environment that a rank gets: torchrun's contract, DeepSpeed's, and what the check has seen of the network."""

from collections.abc import Mapping

from aboard.core.node import Node
from aboard.core.plan import Master
from aboard.core.seat import Seat
from aboard.lazy import dataclass

IFNAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


@dataclass(frozen=True, kw_only=True)
class Berth:
    """Where a rank stands among the others."""

    rank: int
    world: int
    local: int
    local_world: int
    group: int
    groups: int


def contract(berth: Berth, master: Master, run: str) -> dict[str, str]:
    """What torchrun gives a rank (torch/distributed/elastic/agent/server/local_elastic_agent.py), and DeepSpeed too.

    The agent store is False: there is no agent of torchrun's that would host it, so rank 0 must.
    """
    return {
        "RANK": str(berth.rank),
        "WORLD_SIZE": str(berth.world),
        "LOCAL_RANK": str(berth.local),
        "LOCAL_WORLD_SIZE": str(berth.local_world),
        "GROUP_RANK": str(berth.group),
        "GROUP_WORLD_SIZE": str(berth.groups),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(berth.rank),
        "ROLE_WORLD_SIZE": str(berth.world),
        "MASTER_ADDR": master.address,
        "MASTER_PORT": str(master.port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": run,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        # DeepSpeed's own (deepspeed/launcher/launch.py).
        "LOCAL_SIZE": str(berth.local_world),
        "CROSS_RANK": str(berth.group),
        "CROSS_SIZE": str(berth.groups),
    }


def surroundings(node: Node, seat: Seat, berth: Berth, threads: int | None) -> dict[str, str]:
    """What is the node's own; all of it gives way to what the user says."""
    # The second as torchrun sets it: a collective that fails takes its process down instead of hanging it.
    env = {"PYTHONUNBUFFERED": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    env |= {"OMP_NUM_THREADS": str(threads or _threads(seat, berth))}
    if berth.groups > 1 and seat.interface:
        env |= dict.fromkeys(IFNAMES, seat.interface)
    if node.interpreter is not None:
        env |= node.interpreter.env
    if node.picked is not None:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, node.picked))
    return env


def overridden(env: Mapping[str, str]) -> list[str]:
    """Names of the contract that a user's env would break: each rank has its own value of these."""
    own = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK")
    return [name for name in own if name in env]


def _threads(seat: Seat, berth: Berth) -> int:
    """As many as there are cores for each rank; torchrun's 1 where the cores aren't known."""
    return max(1, (seat.cores or 1) // berth.local_world)
