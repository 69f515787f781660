"""Sends files to the nodes with progress: for `aboard sync`, or for `aboard launch --sync` over a launch's links."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click
from rich.console import Console

from aboard.commands.shared.number_format import format_count
from aboard.commands.shared.printed_output import build_console
from aboard.commands.sync.sync_view import NodeProgressView, format_left_out
from aboard.commands.sync.trees.source_tree import SourceTree
from aboard.commands.sync.trees.sync_sources import list_left_out, load_training_files, scan_working_directory
from aboard.commands.sync.trees.sync_trees import sync_trees
from aboard.config.input_files import find_default_files
from aboard.config.this_machine import get_cache_folder
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.file_sync import NodeTreeResult
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.node_sets import fold_names
from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses import AboardError, join_fixes
from aboard.diagnoses.usage import commands
from aboard.transport.node_dialer import NodeDialer

HASHES = "fingerprints.json"


async def send_working_directory(cluster: Cluster, dialer: NodeDialer, limit: int) -> None:
    """Raises if a node can't get the files: a launch needs them on all nodes."""
    nodes = [node for node in cluster if node.transport is not TransportKind.LOCAL]
    if not nodes:
        return
    tree = await asyncio.to_thread(_scan)
    console = build_console(stderr=True)
    amount = f"{format_count(len(tree.files), 'file')}, {format_size(tree.bytes)}"
    if tree.bytes > limit:
        # A link that waits for an answer would be lost: its agent ends after half a minute.
        await dialer.close()
        await asyncio.to_thread(_ask_or_refuse, amount, tree.bytes, limit)
    results = await sync_with_progress(console, nodes, [tree], dialer)
    errors = [result.error for result in results.values() if result.error is not None]
    if errors:
        seen = "\n".join(dict.fromkeys(error.seen for error in errors))
        raise AboardError(errors[0].diagnosis, seen, fix=join_fixes(*dict.fromkeys(error.fix for error in errors)))
    sent = sum(result.sent for result in results.values())
    click.echo(f"sync: {amount} on {format_count(len(nodes), 'node')}; sent {format_size(sent)}", err=True)
    # Only aboard.yaml knows nodes whose name is not what ssh is given.
    listed = all(node.target == node.name and node.user is None and node.port is None for node in nodes)
    on = ["--on", fold_names([node.name for node in nodes])] if listed else []
    for line in format_left_out(list_left_out([tree]), flag=False, nodes=on):
        click.echo(line, err=True)


async def sync_with_progress(
    console: Console,
    nodes: Sequence[Node],
    trees: Sequence[SourceTree],
    dialer: NodeDialer,
    *,
    silent: bool = False,
    **options: Any,
) -> Mapping[str, NodeTreeResult]:
    """Syncs the trees with a live view, or with plain lines if there is no terminal; `options` as of `sync_trees`."""
    hashes = get_cache_folder(os.environ) / HASHES
    run = partial(sync_trees, nodes, trees, dialer, hashes=hashes, **options)
    if silent:
        return await run()
    with NodeProgressView(console) as view:
        return await run(on_progress=view.update)


def _scan() -> SourceTree:
    # The launch has asked whether the file is allowed; only paths of data are read here.
    return scan_working_directory(load_training_files(find_default_files(allow_file=True), ()))


def _ask_or_refuse(amount: str, size: int, limit: int) -> None:
    seen = f"the working directory has {amount}, above the limit of {format_size(limit)}"
    if sys.stdin.isatty() and sys.stderr.isatty():
        click.confirm(f"{seen}. Send it to every node?", abort=True, err=True)
        return
    raise AboardError(commands.LAUNCH_SYNC, seen, "limit", size=f"{-(-size // 10**9)}GB")
