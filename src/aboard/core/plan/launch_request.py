"""A launch request: what the user wants to run, before the nodes are probed."""

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.interpreter import NO_ENV
from aboard.core.cluster.node import Node
from aboard.core.plan.program import Program
from aboard.diagnoses.untrusted import escape_text
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """None means that Aboard chooses, based on preflight.

    `ranks` is the number on each node; by default one per slot. `env` is for every rank, and wins over the nodes' own.
    `nodes` is the number that the user expects: fewer is an error, never a smaller run. `code` is a zip file of Python
    modules that is copied to each node for this run, and that every rank can import.
    """

    program: Program
    ranks: int | None = None
    nodes: int | None = None
    master_address: str | None = None
    master_port: int | None = None
    env: Mapping[str, str] = field(default_factory=lambda: NO_ENV, repr=False)
    threads: int | None = None
    bind: bool | None = None
    beacon: bool = True
    # How often a failed run is restarted: what a pasted launcher's --max-restarts asks for.
    restarts: int = 0
    # Ranks get the variables of a Slurm task (SLURM_PROCID, …), as `srun python train.py` sets them.
    slurm_tasks: bool = False
    code: bytes = field(default=b"", repr=False)


def resolve_request(
    cluster: Cluster, request: LaunchRequest, here: str | None, *, shell: Mapping[str, str] = NO_ENV
) -> tuple[Cluster, LaunchRequest]:
    """Resolves the working directory, which is `here` unless a node has its own, and a port from `env:`.

    If `here` is None, ranks start in the user's home directory, since all of their paths are absolute. Ranks get the
    OMP_NUM_THREADS of the user's shell, if it has one, as with torchrun.
    """
    exported = shell.get("OMP_NUM_THREADS", "")
    if request.threads is None and exported.isdecimal() and int(exported) > 0:
        request = replace(request, threads=int(exported))
    nodes = tuple(_resolve_image(node if node.workdir else replace(node, workdir=here)) for node in cluster)
    env = {**nodes[0].env, **request.env}
    # An address in a file must not move the rendezvous: build_plan refuses it unless it is rank 0's own.
    port, address = request.master_port, request.master_address or request.env.get("MASTER_ADDR")
    if port is None and env.get("MASTER_PORT", "").isdecimal():
        port = int(env["MASTER_PORT"])
    if port is not None:
        # Preflight listens on this port, to test that it is free and reachable.
        nodes = (replace(nodes[0], env={**nodes[0].env, "MASTER_PORT": str(port)}), *nodes[1:])
    return replace(cluster, nodes=nodes), replace(request, master_port=port, master_address=address)


def describe_unused_master(cluster: Cluster, request: LaunchRequest, shell: Mapping[str, str]) -> Iterator[str]:
    """A note if the user's shell has another master address than ranks get."""
    if (exported := shell.get("MASTER_ADDR")) and request.master_address is None and len(cluster) > 1:
        yield f"MASTER_ADDR={escape_text(exported, 99)} of this shell is not used; --master-address sets one"


def _resolve_image(node: Node) -> Node:
    """The image file of Apptainer by its whole path, which probes and agents can read from any directory."""
    container = node.container
    if container is None or container.runtime in {"docker", "podman"} or "://" in container.image or not node.workdir:
        return node
    image = posixpath.normpath(posixpath.join(node.workdir, container.image))
    return replace(node, container=replace(container, image=image))
