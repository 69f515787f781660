"""`aboard sync`."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from aboard.cli.options.node_arguments import ON_OPTION, NodeArguments, node_arguments
from aboard.cli.sync_environment import sync_active_environment
from aboard.core.cluster.node import TransportKind
from aboard.lazy_dataclass import dataclass
from aboard.transport.open_file_limit import raise_open_file_limit


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]…", type=click.Path(path_type=Path))
@partial(node_arguments, nodes=ON_OPTION)
@click.option("--delete", is_flag=True, help="Delete files on the nodes that this machine lacks, but no ignored ones.")
@click.option("--env", "environment", is_flag=True, help="Recreate this machine's Python environment on every node.")
@click.option(
    "--back",
    multiple=True,
    metavar="PATH",
    help="Collect PATH from every node into ./back/NODE/ on this machine; repeatable.",
)
@click.option("--dry-run", "dry", is_flag=True, help="Show what would be sent and deleted; change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def sync(where: NodeArguments, **options: Any) -> None:
    """Copy files and directories to the same path on every node.

    Without PATH, Aboard copies the working directory, and the data files and the model directory that aboard.yaml
    names. Paths below your home go to your home on each node. Unchanged files are not sent; an interrupted copy
    continues where it stopped.

    Exit code: 0 every node has everything; 1 at least one node failed, and the others have everything; 3 the command
    is wrong.
    """
    cluster = where.cluster()
    raise_open_file_limit(len(cluster))
    arguments = _SyncOptions(**options)
    if arguments.environment:
        nodes = [node for node in cluster if node.transport is not TransportKind.LOCAL]
        sys.exit(sync_active_environment(nodes, dry=arguments.dry, as_json=arguments.as_json))


@dataclass(frozen=True, kw_only=True)
class _SyncOptions:
    """The command line options of `aboard sync`."""

    paths: tuple[Path, ...]
    delete: bool
    environment: bool
    back: tuple[str, ...]
    dry: bool
    as_json: bool
