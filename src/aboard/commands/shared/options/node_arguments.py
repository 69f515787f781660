"""The arguments and options that name the nodes, the same for every command."""

import os
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any

import click

from aboard.commands.shared.options.completion import complete_nodes
from aboard.engine.request.node_arguments import NodeArguments
from aboard.engine.request.typed_words import ALLOWED

_NODES_ARGUMENT = click.argument("nodes", nargs=-1, shell_complete=complete_nodes)
# For commands whose arguments are paths.
ON_OPTION = click.option(
    "--on",
    "nodes",
    multiple=True,
    metavar="NODES",
    shell_complete=complete_nodes,
    help="Names, node sets or an aboard.yaml file; repeatable. Default: ./aboard.yaml, or the Slurm job.",
)


def node_arguments(
    command: Callable[..., None], nodes: Callable[[Callable[..., None]], Callable[..., None]] = _NODES_ARGUMENT
) -> Callable[..., None]:
    """Adds NODES, --hostfile, --include, --exclude, --set and --allow-file; the command gets them as `where`."""

    @nodes
    @click.option(
        "-H", "--hostfile", metavar="FILE", help="DeepSpeed hostfile; each line is a node, for example `gpu01 slots=8`."
    )
    @click.option(
        "-i",
        "--include",
        default="",
        metavar="NODES",
        help='Only these nodes and slots, for example "gpu01@gpu02:0,2".',
    )
    @click.option(
        "-e", "--exclude", default="", metavar="NODES", help="All nodes and slots but these; same syntax as --include."
    )
    @click.option(
        "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key in aboard.yaml; repeatable."
    )
    @click.option(
        "--allow-file", is_flag=True, help="Let ./aboard.yaml run what it names, this time; see aboard allow."
    )
    @click.option(ALLOWED, multiple=True, hidden=True, callback=_record_allowed, expose_value=False)
    @wraps(command)
    def with_arguments(**options: Any) -> None:
        own = {field.name: options.pop(field.name) for field in fields(NodeArguments) if field.name in options}
        where = NodeArguments(**own, argv=tuple(sys.argv[1:]), environ=dict(os.environ))
        command(where=where, **options)

    return with_arguments


def _record_allowed(_context: click.Context, _option: click.Parameter, confirmed: tuple[str, ...]) -> None:
    """Records what the user had allowed where they typed this command, which runs in a Slurm job or with --on."""
    if confirmed:
        from aboard.config.allowed_files import FOUND_FILES, record_allowed  # noqa: PLC0415 - only for these

        for file, _, digest in (each.partition("=") for each in confirmed):
            if file in FOUND_FILES:
                record_allowed(file, digest, os.environ)
