"""How a command is told its nodes: the same arguments and options for every verb."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, wraps
from typing import Any

import click

from aboard.config.cluster_loader import guess_nodes, load_cluster
from aboard.config.this_machine import inspect_this_machine
from aboard.core.cluster.cluster import THIS_MACHINE, Cluster
from aboard.core.cluster.head_machine import HeadMachine
from aboard.core.cluster.node import Node
from aboard.core.cluster.slurm_environment import refuse_allocation, refuse_srun_copies
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class NodeArguments:
    """What was typed about nodes, before it is read."""

    nodes: tuple[str, ...]
    hostfile: str | None
    include: str
    exclude: str
    sets: tuple[str, ...]

    @cached_property
    def _here(self) -> HeadMachine:
        """Once: a resolver that does not answer takes a second."""
        return inspect_this_machine()

    def cluster(self) -> Cluster:
        refuse_srun_copies(os.environ, sys.argv[1:])
        cluster = load_cluster(
            self.nodes,
            hostfile=self.hostfile,
            include=self.include,
            exclude=self.exclude,
            sets=self.sets,
            here=self._here,
        )
        if cluster.source == THIS_MACHINE:
            refuse_allocation(os.environ, sys.argv[1:])
        return cluster

    def guess(self) -> tuple[Node, ...]:
        """The nodes to dial while the rest is read; none if that needs more than a look."""
        if self.sets:
            return ()
        return guess_nodes(
            self.nodes, hostfile=self.hostfile, include=self.include, exclude=self.exclude, here=self._here
        )

    def with_default(self, *, hostfile: str | None, include: str, exclude: str) -> "NodeArguments":
        """With what a pasted command says, where nothing was typed before it."""
        has_nodes = bool(self.nodes or self.hostfile)
        return replace(
            self,
            hostfile=self.hostfile if has_nodes else hostfile,
            include=self.include or include,
            exclude=self.exclude or exclude,
        )


def node_arguments(command: Callable[..., None]) -> Callable[..., None]:
    """Adds NODES, --hostfile, --include, --exclude and --set, and hands the command one `where`."""

    @click.argument("nodes", nargs=-1)
    @click.option("-H", "--hostfile", metavar="FILE", help="A DeepSpeed hostfile: `gpu01 slots=8`, one node a line.")
    @click.option("-i", "--include", default="", metavar="NODES", help='Only these: "gpu01@gpu02:0,2".')
    @click.option("-e", "--exclude", default="", metavar="NODES", help="All but these, written as for --include.")
    @click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key of aboard.yaml.")
    @wraps(command)
    def with_words(
        *,
        nodes: tuple[str, ...],
        hostfile: str | None,
        include: str,
        exclude: str,
        sets: tuple[str, ...],
        **others: Any,
    ) -> None:
        where = NodeArguments(nodes=nodes, hostfile=hostfile, include=include, exclude=exclude, sets=sets)
        command(where=where, **others)

    return with_words


def cluster_arguments(command: Callable[..., None]) -> Callable[..., None]:
    """As `node_words`, for commands that want the cluster itself."""

    @wraps(command)
    def with_cluster(*, where: NodeArguments, **others: Any) -> None:
        command(cluster=where.cluster(), **others)

    return node_arguments(with_cluster)
