"""How a command is told its nodes: the same arguments and options for every verb."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from aboard.config.cluster import load_cluster
from aboard.config.here import look_around


def node_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds NODES, --hostfile, --include, --exclude and --set, and hands the command one `cluster`."""

    @click.argument("nodes", nargs=-1)
    @click.option("-H", "--hostfile", metavar="FILE", help="A DeepSpeed hostfile: `gpu01 slots=8`, one node a line.")
    @click.option("-i", "--include", default="", metavar="NODES", help='Only these: "gpu01@gpu02:0,2".')
    @click.option("-e", "--exclude", default="", metavar="NODES", help="All but these, written as for --include.")
    @click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key of aboard.yaml.")
    @wraps(command)
    def with_cluster(
        *,
        nodes: tuple[str, ...],
        hostfile: str | None,
        include: str,
        exclude: str,
        sets: tuple[str, ...],
        **others: Any,
    ) -> None:
        cluster = load_cluster(
            nodes, hostfile=hostfile, include=include, exclude=exclude, sets=sets, here=look_around()
        )
        command(cluster=cluster, **others)

    return with_cluster
