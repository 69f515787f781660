"""`aboard sync --back`."""

import asyncio
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import click
from rich.console import Console

from aboard.commands.shared.error_message import show_error
from aboard.commands.shared.number_format import format_count
from aboard.commands.sync.sync_view import format_collected_json
from aboard.commands.sync.trees.collect_paths import CollectedPath, collect_from_nodes
from aboard.commands.sync.trees.sync_sources import refuse_system_path
from aboard.core.cluster.node import Node
from aboard.core.exit_codes import EXIT_FAILED
from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses import AboardError
from aboard.transport.node_dialer import NodeDialer, choose_bulk_transport

BACK_FOLDER = Path("back")


async def collect_paths(nodes: Sequence[Node], paths: Sequence[str], *, as_json: bool) -> int:
    """Collects the paths from all nodes into ./back/NODE/, and returns the exit code."""
    for path in paths:
        if not path.startswith("~"):
            refuse_system_path(Path(path))
    async with NodeDialer(choose_bulk_transport) as dialer:
        dialer.begin(nodes)
        found = await collect_from_nodes(nodes, [PurePosixPath(path) for path in paths], BACK_FOLDER, dialer)
    errors = [each.error for each in found if each.error is not None]
    if as_json:
        click.echo(format_collected_json(found))
    else:
        for each in found:
            click.echo(_describe(each))
        for error in {error.code: error for error in errors}.values():
            await asyncio.to_thread(show_error, Console(stderr=True, highlight=False), error)
    return EXIT_FAILED if errors else 0


def _describe(each: CollectedPath) -> str:
    if isinstance(each.error, AboardError):
        return f"failed {each.node}: {each.error.seen} [{each.error.code}]"
    skipped = f"; skipped {each.skipped} links that lead out, special files or files of .git" if each.skipped else ""
    amount = f"{format_count(each.files, 'file')}, {format_size(each.bytes)}, received {format_size(each.received)}"
    return f"collected {each.node}: {each.target} has {amount}{skipped}"
