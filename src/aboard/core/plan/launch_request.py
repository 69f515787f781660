"""A request: what the user wants to run, before anything is known of the nodes."""

from collections.abc import Mapping
from dataclasses import field, replace

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.interpreter import NO_ENV
from aboard.core.plan.program import Program
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """What is None is chosen from what the check has seen.

    `ranks` is the number on each node; without it a node starts one for each of its slots. `env` is for every rank, and
    wins over the nodes' own. `nodes` is how many nodes the user said there are: fewer is an error, never a smaller run.
    `code` is a zip file of Python modules that every rank can import, brought to each node for this run.
    """

    program: Program
    ranks: int | None = None
    nodes: int | None = None
    master_address: str | None = None
    master_port: int | None = None
    env: Mapping[str, str] = field(default_factory=lambda: NO_ENV, repr=False)
    threads: int | None = None
    bind: bool = False
    beacon: bool = True
    # End a run that is stuck, once that is sure, instead of saying so only.
    stop_on_stall: bool = False
    code: bytes = field(default=b"", repr=False)


def resolve_request(cluster: Cluster, request: LaunchRequest, here: str | None) -> tuple[Cluster, LaunchRequest]:
    """Ranks start where the command was typed, unless a node has a directory of its own; a port in `env:` is wanted.

    With None for `here` they start in their login's home: all that they read is named by whole paths.
    """
    nodes = tuple(node if node.workdir else replace(node, workdir=here) for node in cluster)
    env = {**nodes[0].env, **request.env}
    port, address = request.master_port, request.master_address or env.get("MASTER_ADDR")
    if port is None and env.get("MASTER_PORT", "").isdecimal():
        port = int(env["MASTER_PORT"])
    if port is not None:
        # The look listens there, to see that it is free and that all can reach it.
        nodes = (replace(nodes[0], env={**nodes[0].env, "MASTER_PORT": str(port)}), *nodes[1:])
    return replace(cluster, nodes=nodes), replace(request, master_port=port, master_address=address)
